"""The best plan at an instant, and how far the plans of policies are from it (docs/optimum.md)."""
