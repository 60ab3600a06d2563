"""From a table of runs to coefficients one may trust, and to the decisions they carry. Import from the files here."""
