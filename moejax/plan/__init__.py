"""Plans: a training compiled for chips that nobody has to own, and what that says of memory, time and cost."""
