"""Compiled loops that drive the kernels of sites through whole workloads."""
