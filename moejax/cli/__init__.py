"""Define the command line: options in ``parsers/NAME.py``, without JAX, and the implementation in ``commands/NAME.py``.

The module of a command is imported after its arguments are parsed.
"""

COMMANDS = {
    "init": "copy moejax's own configs here, to run and to change",
    "data": "prepare text for training: tokenise, train a tokenizer, look inside",
    "study": "train a family of models, fit laws to it, decide, report",
    "launch": "hand a training, or a study's, to Slurm, Google Kubernetes Engine or SkyPilot",
    "train": "train one model to one or more token budgets",
    "status": "how a training or a study stands",
    "plan": "compile a training for a pod without having one: does it fit, what does it take",
    "sample": "continue a prompt with a trained or converted model",
    "eval": "downstream tasks of lm-evaluation-harness on a trained or converted model",
    "convert": "Hugging Face checkpoints to moejax's weights, and the other way",
    "fit": "fit a law to a table of runs",
    "curves": "fit a law to loss curves: any schedule's loss, and the best schedule",
    "compare": "which law to trust for a table of runs",
    "next": "which runs to train next, so that an answer becomes certain for the FLOPs",
    "plot": "draw figures by name: the papers' own, of a fit, of a run; with their data",
    "report": "one page about a study, a table of runs or a fit",
    "explore": "a page with sliders for the laws, published or your own fit",
    "design": "from a budget to an architecture: sizes, shape and tokens, and what limits are worth",
    "leverage": "how many times the compute one family needs to be as good as another",
    "ranges": "which G, S and N_a/N are nearly as good as the best under a five-factor law, and which pay",
    "predict": "loss that published laws predict for a model",
    "count": "parameters, FLOPs and memory of a model, by part and by convention",
    "laws": "the laws, their papers and constants",
    "reproduce": "every computable number of five papers, recomputed and held to what is printed",
}
"""Commands with their one-line help, in the order of ``moejax --help``."""
