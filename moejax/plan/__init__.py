"""Plans: trainings compiled for chips that need not be present, with their memory, time and cost."""
