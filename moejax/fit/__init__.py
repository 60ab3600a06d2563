"""Fit laws to tables of runs, with uncertainty and decisions. Import from the modules of this package.

The package is callable: ``moejax.fit(runs, law)`` calls ``moejax.fit.fit.fit``.
"""

from moejax.callable_module import make_callable

make_callable(__name__, "moejax.fit.fit.fit")
