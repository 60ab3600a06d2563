"""Laws of MoE models."""
