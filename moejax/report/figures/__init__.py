"""Draw the figures of reports: each module converts inputs or findings to a ``Figure`` and fits nothing."""
