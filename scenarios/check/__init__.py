"""Whether a schedule is one: faults, promises kept, and where two schedules differ (docs/check.md)."""
