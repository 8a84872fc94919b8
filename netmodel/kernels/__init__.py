"""Compiled kernels of the network model; docs/netmodel.md derives the formulas."""
