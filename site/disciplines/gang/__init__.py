"""Gang scheduling: jobs share nodes in time (docs/gang.md)."""
