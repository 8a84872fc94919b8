"""Checks of schedules: faults, kept promises, and where two schedules differ (docs/check.md)."""
