"""Uncertainty of a fit: covariance, bootstrap, profile, noise, and what the runs do not determine."""
