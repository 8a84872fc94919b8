"""Levels of priority in a queue, and the eviction of jobs of lower levels (docs/levels.md)."""
