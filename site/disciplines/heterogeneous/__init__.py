"""Sites whose machines differ, and jobs with several forms (docs/heterogeneous.md)."""
