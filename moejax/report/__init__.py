"""Report results as terminal text, figures and HTML pages. This package fits nothing."""
