"""Design an architecture for a budget by gradient: what is chosen, its constraints, and the value of each constraint.

Every problem has the form ``minimise w·m(z) where low ≤ m(z) ≤ high``. The z are logarithms of the chosen quantities,
and the m are measures of them, computed by a law and the accounting and solved by ``solve.py``.

Calling the package, as ``moejax.design("zhao", flops=1e24)``, calls ``moejax.design.decide.design``.
"""

from moejax.callable_module import make_callable

make_callable(__name__, "moejax.design.decide.design")
