"""What belongs to five documents on Mixture-of-Experts scaling alone: their numbers, figures, errata, example tables.

``reproduce.py`` recomputes every number that can be computed, one document a file; ``record.py`` says how a printed
and a computed number are compared; ``plots.py`` names the figures. No other part but the command line imports this.
"""
