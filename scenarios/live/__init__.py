"""Workloads played on a live grid, and what came of them beside the simulation."""
