"""Sites with different machines, and jobs with several forms (docs/heterogeneous.md)."""
