"""Chapter 002: effective parameters."""
