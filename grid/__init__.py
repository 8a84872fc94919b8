"""Across sites: the meta-scheduler and what it decides."""
