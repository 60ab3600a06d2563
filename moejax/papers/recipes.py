"""Register the papers' procedures that a study can end with."""

from __future__ import annotations

from moejax.papers.tian.recipe import follow

STUDY_RECIPES = {"tian": follow}
"""Procedures by name, as in ``analysis.recipe``."""
