"""Evaluate models on downstream tasks: compute likelihoods, generate text, and run lm-evaluation-harness."""
