"""Studies: train a set of models, fit laws to their runs, compute decisions, and check the results."""
