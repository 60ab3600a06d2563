"""Compute the uncertainty of a fit: covariance, bootstrap, profile, noise, and undetermined coefficients."""
