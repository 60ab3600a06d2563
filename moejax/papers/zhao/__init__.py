"""Zhao et al. (2025): five factors."""
