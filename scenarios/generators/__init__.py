"""Workload generators: models of whole workloads, some of them fitted to traces, and their files."""
