"""Levels of priority in a queue, and who may evict whom (docs/levels.md)."""
