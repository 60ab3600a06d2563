"""Stages of ``benchmarks/accelerator.py``, each of which runs in its own processes."""
