"""Runs from where people keep them: a folder or a server of an experiment tracker, as a table of one row a run.

Import from the files here; ``moejax.run_table`` reads them by ``source.read``.
"""
