"""Read tables of runs: names of columns, units, checks of rows, and ``read_runs``, which returns the runs of a law."""
