"""Compute the optima of IsoFLOP sweeps as in Hoffmann et al. (2022)."""
