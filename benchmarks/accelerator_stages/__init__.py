"""The stages of ``benchmarks/accelerator.py``, each run in processes of its own."""
