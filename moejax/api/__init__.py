"""Names of ``import moejax as mj`` that combine several packages: commands on Python objects, and figures."""
