"""Every computable number of five documents on Mixture-of-Experts scaling, recomputed and held to what is printed.

One document a file; ``papers.py`` lists them, ``record.py`` says how a printed and a computed number are compared.
"""
