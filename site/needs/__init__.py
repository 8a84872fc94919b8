"""Resource needs of jobs on shared nodes, past run times of jobs, and the measured effects of sharing."""
