"""Configuration files of a live grid: GRID.toml (docs/up.md) and ``gridweave serve`` files (docs/serve.md)."""
