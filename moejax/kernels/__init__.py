"""Kernels: all implementations of each operation per platform, and the table that selects one (``table.py``)."""
