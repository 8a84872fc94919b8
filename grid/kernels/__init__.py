"""The decision rules across sites (docs/grid.md), compiled: pure functions over arrays, each rule written once."""
