"""Compiled code that replays a schedule and records the promises that disciplines would have made."""
