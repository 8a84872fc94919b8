"""Gang scheduling: jobs time-share nodes (docs/gang.md)."""
