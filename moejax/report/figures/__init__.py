"""Figures, one a file: a subject or findings in, a Picture out. Nothing is fitted here."""
