"""What may be asked of each command: options as data. Nothing here imports JAX, so that help and mistakes are quick."""
