"""Compiled loops that run whole workloads through the kernels of sites and grids."""
