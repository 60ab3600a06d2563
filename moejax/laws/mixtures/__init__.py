"""Laws of mixtures of experts."""
