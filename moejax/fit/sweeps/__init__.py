"""Analyse sweeps: optima at IsoFLOP budgets, minima over swept settings, loss-compute curves and leverage."""
