"""Laws of task scores as functions of the loss."""
