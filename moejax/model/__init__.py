"""Define the Flax NNX transformer: thin modules that hold parameters, and the functions that use them."""
