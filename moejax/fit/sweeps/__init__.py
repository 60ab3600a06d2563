"""Analyses of sweeps: optima of IsoFLOP budgets, minima of swept settings, loss-compute curves and leverage."""
