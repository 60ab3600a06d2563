"""Figures, one a file: inputs or findings in, a Figure out. Nothing is fitted here."""
