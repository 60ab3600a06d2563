"""Choose the next runs to train, so that they give the most information per FLOP about an answer or the best law.

The information of a run is its contribution to the Fisher information (``laplace_posterior.py``). A set of runs is
scored by the expected variance of the answer (``criterion.py``). The number of runs per candidate is first relaxed to a
real number; integer runs are then exchanged one by one (``experiment_plan.py``).
"""
