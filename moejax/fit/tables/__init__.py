"""Read tables of runs: ``read_runs`` resolves column names, checks units and rows, and returns the runs."""
