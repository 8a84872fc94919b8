"""Find the best plan at a point in time, and compare policies' plans with it (docs/optimum.md)."""
