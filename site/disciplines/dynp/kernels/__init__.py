"""The kernels of dynP, which plan and evaluate each candidate and choose one of the candidates."""
