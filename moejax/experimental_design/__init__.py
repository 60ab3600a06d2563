"""Choose the runs to train next that give the most information per FLOP about an answer, or about the best law.

The information of a run is its row of the Fisher information (``laplace_posterior.py``). A set of runs is scored by the
expected variance of the answer (``criterion.py``). The numbers of runs are first relaxed to real numbers, then
exchanged one by one (``experiment_plan.py``).
"""
