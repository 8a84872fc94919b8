"""Sites whose nodes belong to a batch system (docs/batch-systems.md)."""
