"""Compiled code of bounds and metrics."""
