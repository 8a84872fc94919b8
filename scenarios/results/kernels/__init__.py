"""Compiled code for bounds and metrics."""
