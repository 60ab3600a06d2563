"""Which runs to train next: those that tell most, per FLOP, about one answer of a law, or about which law holds.

What a run tells is its row of the Fisher information (``laplace_posterior.py``); every set of runs is judged by the
variance that it would leave of the answer (``criterion.py``), first relaxed to real numbers of runs, then exchanged one
by one (``experiment_plan.py``).
"""
