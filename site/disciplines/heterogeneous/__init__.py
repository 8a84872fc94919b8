"""Sites of machines that differ, for jobs of several forms (docs/heterogeneous.md)."""
