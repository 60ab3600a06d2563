"""Plans: compile training runs for chips that need not be present, and report memory, time and cost.

Calling the package, as ``moejax.plan(…)``, calls ``moejax.api.commands.plan``.
"""

from moejax.callable_module import make_callable

make_callable(__name__, "moejax.api.commands.plan")
