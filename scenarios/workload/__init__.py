"""Workloads: the job table, its columns, and functions that transform it."""
