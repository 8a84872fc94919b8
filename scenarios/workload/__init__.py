"""Workloads: the table of jobs, what its columns hold, and what is made of it."""
