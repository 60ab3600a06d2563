"""Read and write weights: safetensors files, tensor by tensor, and moejax's own weights folder."""
