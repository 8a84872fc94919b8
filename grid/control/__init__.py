"""Levels of control: how much of the sites the grid decides."""
