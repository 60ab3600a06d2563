"""Read text or tokens from disk and make batches: sources, tokenizers, prepared sets, packing, mixtures, order."""
