"""The compiled decision rules across sites (docs/grid.md): pure functions over arrays, each rule written once."""
