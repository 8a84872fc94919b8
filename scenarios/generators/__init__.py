"""Workload generators: models of whole workloads, learnt from a trace, and the files that hold them."""
