"""Compiled scheduling of a heterogeneous site: which job runs on which machine or team, and in which order."""
