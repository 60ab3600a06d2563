"""moejax: decide what Mixture-of-Experts model to train, then train it, in one differentiable JAX stack.

``import moejax as mj`` is instant and imports nothing else. A few names are imported when they are first used:
``mj.read_runs``, ``mj.fit``, ``mj.read_curves``, ``mj.fit_curves``, ``mj.FitResult``, ``mj.laws``, ``mj.Design``,
``mj.design``, ``mj.Architecture``, ``mj.Training`` and ``mj.show``. All else is in its packages, such as
``moejax.routing``, ``moejax.model`` and ``moejax.study``.
"""

__version__ = "0.1.0"

_OFFERED = {
    "Architecture": "moejax.architecture",
    "Design": "moejax.laws.design",
    "FitResult": "moejax.fit.fit_result",
    "Training": "moejax.train.training",
    "design": "moejax.design",
    "fit": "moejax.fit",
    "fit_curves": "moejax.fit.loss_curves",
    "laws": "moejax.laws",
    "read_curves": "moejax.fit.read_curves",
    "read_runs": "moejax.fit.read_runs",
    "show": "moejax.report.render",
}
"""Where a name is; a package is offered itself. Their types stand in ``__init__.pyi``."""


def __getattr__(name: str) -> object:
    """A name of ``_OFFERED``, imported now (PEP 562)."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_OFFERED[name])
    return module if _OFFERED[name] == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    """What editors complete."""
    return sorted({*globals(), *_OFFERED})
