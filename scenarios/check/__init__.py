"""Check schedules for faults and broken promises, and find where two schedules first differ (docs/check.md)."""
