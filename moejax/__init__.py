"""moejax: decide what Mixture-of-Experts model to train, then train it, in one differentiable JAX stack.

``import moejax as mj`` is instant and imports nothing else. The names below are imported on first use, such as
``mj.read_runs``, ``mj.fit`` and ``mj.design``. Everything else is in the packages, such as ``moejax.routing``,
``moejax.model`` and ``moejax.study``.
"""

__version__ = "0.1.0"

_OFFERED = {
    "Architecture": "moejax.architecture",
    "Design": "moejax.laws.design",
    "FitResult": "moejax.fit.fit_result",
    "Study": "moejax.study.study",
    "Training": "moejax.train.training",
    "compare": "moejax.api.commands",
    "decide": "moejax.api.commands",
    "design": "moejax.design",
    "fit": "moejax.fit",
    "fit_curves": "moejax.curves.loss_curves",
    "laws": "moejax.laws",
    "leverage": "moejax.api.commands",
    "next_runs": "moejax.api.commands",
    "plan": "moejax.plan",
    "plot": "moejax.api.plot",
    "predict": "moejax.laws.predict",
    "read_curves": "moejax.curves.read_curves",
    "read_runs": "moejax.fit.tables.read_runs",
    "report": "moejax.report",
    "show": "moejax.report.render",
    "speedup": "moejax.api.commands",
    "train": "moejax.train",
}
"""Module that defines each public name, or is itself the public object. Their types are in ``__init__.pyi``."""


def __getattr__(name: str) -> object:
    """Import and return a name of ``_OFFERED`` (PEP 562)."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_OFFERED[name])
    return getattr(module, name, module)


def __dir__() -> list[str]:
    """Return the public names for completion in editors."""
    return sorted([*_OFFERED, "__version__"])
