"""Recompute published tables and figures with gridweave, and compare our numbers with the published ones."""
