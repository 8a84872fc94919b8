"""Compiled code of fractional scheduling."""
