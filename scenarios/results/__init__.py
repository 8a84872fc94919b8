"""What a simulation returns: the schedule, its metrics, tables and files."""
