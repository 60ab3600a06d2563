"""Read runs from folders and servers of experiment trackers into a table with one row per run.

Import from the modules of this package; ``moejax.run_table`` calls ``source.read``.
"""
