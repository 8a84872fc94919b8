"""All that is specific to Slurm: its commands, their output, and the meaning of its words."""
