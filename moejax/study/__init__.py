"""Studies: expand a family of models, train it, fit laws to its runs, decide, and check the result."""
