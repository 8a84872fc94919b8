"""Configuration files of a live grid: GRID.toml (docs/up.md) and the files of serve (docs/serve.md)."""
