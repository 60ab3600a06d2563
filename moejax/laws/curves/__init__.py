"""Laws of whole loss curves, and the schedule features that they read."""
