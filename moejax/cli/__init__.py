"""The command line: one command a file, each with ``NAME``, ``HELP``, ``EXAMPLE``, ``add_arguments`` and ``run``.

Modules here are light; what a command needs is imported when it runs.
"""

COMMANDS = {
    "data": "prepare text for training: tokenise, train a tokenizer, look inside",
    "study": "train a family of models, fit laws to it, decide, report",
    "train": "train one model to one or more token budgets",
    "sample": "continue a prompt with a trained or converted model",
    "convert": "Hugging Face checkpoints to moejax's weights, and the other way",
    "fit": "fit a law to a table of runs",
    "compare": "which law to trust for a table of runs",
    "report": "write the report of a study's folder",
    "design": "from a budget to an architecture: sizes, shape and tokens, and what limits are worth",
    "predict": "loss that published laws predict for a model",
    "count": "parameters, FLOPs and memory of a model, by part and by convention",
    "laws": "the laws, their papers and constants",
    "reproduce": "every computable number of five papers, recomputed and held to what is printed",
}
"""Every command with its one line of help, in the order of ``moejax --help``; module ``moejax.cli.NAME`` runs it."""
