"""Sites whose nodes belong to a batch system (docs/slurm.md)."""
