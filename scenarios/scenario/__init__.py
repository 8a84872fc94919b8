"""Scenarios: a grid, a workload and a policy in one file, read, checked, built and run (docs/scenarios.md)."""
