"""What is Slurm's own: its commands, what they print, and what its words mean."""
