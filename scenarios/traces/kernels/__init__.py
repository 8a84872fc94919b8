"""Compiled kernels that read traces."""
