"""ICLR 2026 explainer of Li et al.: resources."""
