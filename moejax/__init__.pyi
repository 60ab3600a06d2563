"""Types of the names of ``import moejax as mj``, for editors and type checkers; each is imported at its first use."""

from moejax import laws as laws
from moejax.api import plot as plot
from moejax.api.commands import compare as compare
from moejax.api.commands import decide as decide
from moejax.api.commands import design as design
from moejax.api.commands import leverage as leverage
from moejax.api.commands import next_runs as next_runs
from moejax.api.commands import plan as plan
from moejax.api.commands import speedup as speedup
from moejax.api.commands import train as train
from moejax.api.report import report as report
from moejax.architecture import Architecture as Architecture
from moejax.curves.loss_curves import fit_curves as fit_curves
from moejax.curves.read_curves import read_curves as read_curves
from moejax.fit.fit import fit as fit
from moejax.fit.fit_result import FitResult as FitResult
from moejax.fit.tables.read_runs import read_runs as read_runs
from moejax.laws.design import Design as Design
from moejax.laws.predict import predict as predict
from moejax.report.render import show as show
from moejax.study.study import Study as Study
from moejax.train.training import Training as Training

__version__: str
