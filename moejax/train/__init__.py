"""Training: data, state, step, loop, optimizer, schedule, checkpoint, metrics, mesh.

Calling the package, as ``moejax.train(…)``, calls ``moejax.api.commands.train``.
"""

from moejax.callable_module import make_callable

make_callable(__name__, "moejax.api.commands.train")
