"""Batch simulation: a whole workload through one compiled loop."""
