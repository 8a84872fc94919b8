"""The version of gridweave, for whoever needs nothing else of it."""

__version__ = "0.1.0"
