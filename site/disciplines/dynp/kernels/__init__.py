"""The kernels of dynP, which make and evaluate a plan for each candidate policy and choose one policy."""
