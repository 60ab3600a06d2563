"""Choice between laws: metrics, held-out runs, comparison."""
