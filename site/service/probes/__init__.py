"""Measurements of the paths to other sites (docs/netmodel.md, "Probes")."""
