"""GRID.toml: a live grid as its operator writes it down (docs/up.md)."""
