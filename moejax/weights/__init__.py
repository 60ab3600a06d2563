"""Weights on disk: safetensors files read and written tensor by tensor, and moejax's own weights folder."""
