"""Tian et al. (2025): efficiency leverage."""
