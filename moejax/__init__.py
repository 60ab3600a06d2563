"""moejax: decide what Mixture-of-Experts model to train, then train it, in one differentiable JAX stack.

Nothing is imported here, so that ``import moejax`` is instant; take what you need from its packages:
``moejax.architecture``, ``moejax.laws``, ``moejax.routing``, ``moejax.model``, ``moejax.fit``, ``moejax.train``,
``moejax.study``, ``moejax.report``.
"""

__version__ = "0.1.0"
