"""Define the command line: ``commands/NAME.py`` declares the options of a command and does its work.

Only the module of the command that is called is imported.
"""

from importlib import import_module
from types import ModuleType

COMMANDS = {
    "init": "copy the example configs into this folder",
    "data": "prepare text for training: tokenize, train a tokenizer, inspect",
    "study": "train several models, fit laws to their runs, decide, report",
    "launch": "submit a training run or a study to Slurm, Google Kubernetes Engine or SkyPilot",
    "train": "train one model to one or more token budgets",
    "status": "show the progress of a training run or a study",
    "plan": "compile a training run for accelerators that you do not have: memory, time, cost",
    "sample": "continue a prompt with a trained or converted model",
    "eval": "run tasks of lm-evaluation-harness on a trained or converted model",
    "convert": "convert Hugging Face checkpoints to moejax weights and back",
    "fit": "fit a law to a table of runs",
    "curves": "fit a law to loss curves; predict the loss of any schedule, and the best schedule",
    "compare": "compare laws on held-out runs of a table",
    "next": "choose the runs that reduce the uncertainty of an answer most per FLOP",
    "plot": "draw figures of papers, fits and runs, with their data",
    "report": "write a report page about a study, a run table or a fit",
    "explore": "open a page with sliders for published laws and your own fits",
    "design": "choose an architecture for a budget: sizes, shape, tokens, shadow prices",
    "leverage": "compare the compute that two families of models need for the same loss",
    "ranges": "find nearly optimal ranges of a model's MoE settings under a five-factor law",
    "predict": "predict the loss of a model by published laws",
    "count": "count parameters, FLOPs and memory of a model",
    "laws": "list laws with their papers and constants",
    "cite": "print BibTeX entries and arXiv numbers of a law's documents",
    "reproduce": "recompute the numbers of five papers and compare them with the printed ones",
}
"""Commands with their one-line help, in the order of ``moejax --help``."""


def command_module(name: str) -> ModuleType:
    """Return the imported module of a command."""
    return import_module(f"moejax.cli.commands.{'laws' if name == 'cite' else name}")
