"""Reports: what a study found, as the last lines of a terminal, as figures, and as one page. Nothing is fitted here."""
