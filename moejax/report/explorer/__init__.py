"""The explorer: ``choice`` is what is chosen, ``view`` what is seen of it, ``app`` the marimo page."""
