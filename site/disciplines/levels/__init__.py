"""Priority levels in a queue, and eviction of lower-level jobs (docs/levels.md)."""
