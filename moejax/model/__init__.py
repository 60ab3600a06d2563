"""Define the Flax NNX transformer: thin modules with parameters, and the functions that use them."""
