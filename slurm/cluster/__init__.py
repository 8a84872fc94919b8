"""The Slurm-specific code: commands, the REST interface, and the meaning of states and reasons."""
