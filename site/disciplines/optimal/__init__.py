"""A planning site that uses a solver to find its plans (docs/optimum.md)."""
