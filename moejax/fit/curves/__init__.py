"""Loss curves of whole trainings: reading, fitting, and losses of budgets that were not trained."""
