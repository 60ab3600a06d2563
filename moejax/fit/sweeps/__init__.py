"""Analyse sweeps: the lowest loss of each budget, minima over swept settings, and leverage from both."""
