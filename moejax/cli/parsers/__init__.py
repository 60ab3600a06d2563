"""Define the options of each command as data, without importing JAX, so that help and errors are fast."""
