"""The planning site that finds its plans with a solver (docs/optimum.md)."""
