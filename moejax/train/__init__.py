"""Training: data, state, step, loop, optimiser, schedule, checkpoint, metrics, mesh."""
