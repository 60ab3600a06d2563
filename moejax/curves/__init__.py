"""Read and fit the loss curves of training runs, and predict the losses of untrained budgets."""
