"""Reproduce five documents on Mixture-of-Experts scaling: their numbers, figures, errata and example tables.

``reproduce.py`` recomputes every computable number, with one file per document. ``record.py`` compares printed and
computed numbers. ``plots.py`` names the figures. Only the command line imports this package.
"""
