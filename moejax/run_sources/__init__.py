"""Read runs from folders and servers of experiment trackers into a table with one row per run.

Import from the files here; ``moejax.run_table`` reads them by ``source.read``.
"""
