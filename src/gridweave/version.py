"""The version of gridweave; this module imports nothing."""

__version__ = "0.1.0"
