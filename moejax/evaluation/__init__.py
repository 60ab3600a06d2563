"""Downstream evaluation: what a model says of given texts, and lm-evaluation-harness on top of it."""
