"""Scaling laws as pure functions: one law a file. Import a law from its file; ``LAWS`` finds it by name."""
