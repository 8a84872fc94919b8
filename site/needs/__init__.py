"""The needs of jobs on shared nodes, experience with them, and the measured effects of sharing."""
