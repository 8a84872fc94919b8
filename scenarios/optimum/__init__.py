"""The best plan of an instant, and how far the plans of policies are from it (docs/optimum.md)."""
