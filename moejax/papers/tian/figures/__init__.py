"""Figures of Tian et al. (2025)."""
