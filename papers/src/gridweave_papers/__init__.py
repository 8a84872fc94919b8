"""Recompute published tables and figures with gridweave, and compare the numbers."""
