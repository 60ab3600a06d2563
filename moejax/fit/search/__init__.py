"""Search for coefficients: objectives, initial guesses, minimisation and identifiability."""
