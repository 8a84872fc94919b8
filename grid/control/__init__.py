"""Levels of control: how much the grid decides for its sites."""
