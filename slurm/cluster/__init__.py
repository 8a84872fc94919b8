"""Everything specific to Slurm: its commands, its REST interface, and the meaning of its states and reasons."""
