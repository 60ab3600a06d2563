"""Figures of Abnar et al. (2025)."""
