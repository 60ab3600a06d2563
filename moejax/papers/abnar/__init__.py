"""Abnar et al. (2025): sparsity at fixed compute."""
