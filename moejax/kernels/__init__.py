"""Kernels: every way of computing an operation on a platform, and the table that chooses among them (``table.py``)."""
