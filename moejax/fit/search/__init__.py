"""Search for coefficients: objectives, initial guesses, minimization and identifiability."""
