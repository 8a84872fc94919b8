"""Explain when a job of the grid starts, and why not earlier."""
