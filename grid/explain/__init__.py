"""Explain when a grid job starts, and why it does not start earlier."""
