"""Report results as terminal text, figures and HTML pages. This package fits nothing.

Calling the package, as ``moejax.report(…)``, calls ``moejax.api.report.report``.
"""

from moejax.callable_module import make_callable

make_callable(__name__, "moejax.api.report.report")
