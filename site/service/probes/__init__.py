"""Measurements of the way to other sites (docs/netmodel.md, "Probes")."""
