"""Figures of the five documents; ``moejax.papers.plots`` has their names."""
