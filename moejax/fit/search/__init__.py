"""The search for coefficients: objectives, initial guesses, minimisation and identifiability."""
