"""Scenarios, workloads and traces, the simulators, and their results."""
