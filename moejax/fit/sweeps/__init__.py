"""Find optima of sweeps: of sizes at a budget, of learning rates and other settings."""
