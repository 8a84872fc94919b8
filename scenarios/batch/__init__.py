"""Batch simulation: a whole workload in one compiled loop."""
