"""What each command does, imported once its words have been checked."""
