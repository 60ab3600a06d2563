"""Plans: training runs compiled for chips that need not be present, with their memory, time and cost.

Calling the package, as ``moejax.plan(…)``, calls ``moejax.api.commands.plan``.
"""

from moejax.callable_module import make_callable

make_callable(__name__, "moejax.api.commands.plan")
