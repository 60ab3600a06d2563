"""Names of ``import moejax as mj`` that join several packages: commands on Python objects, and figures."""
