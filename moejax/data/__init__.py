"""Read text or tokens from disk and make training batches, with tokenizers, packing, mixtures and shuffling."""
