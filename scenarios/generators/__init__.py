"""Workload generators: models of whole workloads, some of them learnt from traces, and their files."""
