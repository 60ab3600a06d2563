"""The explorer: ``state`` is what is chosen, ``view`` what is seen of it, ``app`` the marimo page."""
