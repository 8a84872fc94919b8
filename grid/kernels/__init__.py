"""The grid's compiled decision rules (docs/grid.md): functions over arrays, in which each rule is written once."""
