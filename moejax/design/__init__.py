"""From a budget to an architecture by gradient: what is chosen, what constrains it, and what each constraint is worth.

Everything is one form of problem, ``minimise w·m(z) where low ≤ m(z) ≤ high``: z are logarithms of what is chosen, and
m are measures of it, taken through a law and the accounting (``program.py``), solved in ``solve.py``.

Called, ``moejax.design("zhao", flops=1e24)``, it is ``moejax.design.design.design``.
"""

from moejax.callable_package import make_callable

make_callable(__name__, "moejax.design.design.design")
