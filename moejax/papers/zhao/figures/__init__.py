"""Figures of Zhao et al. (2025)."""
