"""Laws of dense models."""
