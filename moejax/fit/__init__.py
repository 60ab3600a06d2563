"""From a table of runs to coefficients one may trust, and to the decisions they carry. Import from the files here.

Called, ``moejax.fit(runs, law)``, it is ``moejax.fit.fit.fit``.
"""

from moejax.callable_module import make_callable

make_callable(__name__, "moejax.fit.fit.fit")
