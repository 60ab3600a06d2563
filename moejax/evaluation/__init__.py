"""Evaluate models on downstream tasks: likelihoods and generation for given texts, and lm-evaluation-harness."""
