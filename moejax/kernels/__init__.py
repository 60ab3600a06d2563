"""Kernels: implementations of each operation by platform, and the table that selects an implementation
(``table.py``)."""
