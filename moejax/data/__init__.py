"""From text or tokens on disk to batches: sources, tokenizers, prepared sets, packing, mixtures, order."""
