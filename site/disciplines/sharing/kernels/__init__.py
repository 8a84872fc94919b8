"""Compiled rules for shared nodes: which jobs share nodes, and how much it slows them down (docs/sharing.md)."""
