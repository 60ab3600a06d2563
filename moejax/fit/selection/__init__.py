"""Compare laws by metrics and held-out runs, and choose one."""
