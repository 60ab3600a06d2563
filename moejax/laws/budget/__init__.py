"""Laws that map a compute budget to hyperparameters, sizes or tokens."""
