"""The result of a simulation: the schedule, its metrics, tables and files."""
