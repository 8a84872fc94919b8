"""Kernels that read traces."""
