"""Fractions of nodes: dynamic fractional resource scheduling (docs/fractional.md)."""
