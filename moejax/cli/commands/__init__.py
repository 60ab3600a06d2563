"""Implement the commands. Each module is imported after its arguments have been validated."""
