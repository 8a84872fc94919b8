"""Whether a schedule is one: faults, promises kept, and where two schedules part (docs/check.md)."""
