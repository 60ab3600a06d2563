"""Cache counts of parameters, FLOPs and bytes, because a search estimates thousands of candidates of one architecture.

The architectures here have plain numbers. Traced numbers of a design must not be kept in a cache.
"""

from functools import lru_cache

from moejax.laws import accounting, memory

params = lru_cache(accounting.params)
mtp_params = lru_cache(accounting.mtp_params)
flops_per_token = lru_cache(accounting.flops_per_token)
named_activations = lru_cache(memory.named_activations)
training_memory = lru_cache(memory.training_memory)
