"""The client of a grid's gateway."""
