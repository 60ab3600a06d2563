"""Read text or tokens from disk and make training batches: sources, tokenizers, prepared sets, packing, mixtures,
order.
"""
