"""The kernels of dynP: make the plan of each candidate, evaluate it, and choose a candidate."""
