"""Design an architecture for a budget by gradient-based optimization, with constraints and the price of each.

Every problem has the form ``minimize w·m(z) where low ≤ m(z) ≤ high``, which ``solve.py`` solves. The z are logarithms
of the chosen quantities, and the m are measures of the design, computed by a law and the accounting.

The package is callable: ``moejax.design("zhao", flops=1e24)`` calls ``moejax.api.commands.design``.
"""

from moejax.callable_module import make_callable

make_callable(__name__, "moejax.api.commands.design")
