"""Workloads and traces, the simulator, its results, and published numbers."""
