"""Compiled replay of a schedule, with the promises that disciplines would have made."""
