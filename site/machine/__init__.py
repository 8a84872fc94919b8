"""Real processes on one machine: fragments of jobs that outlive whoever started them (docs/live-processes.md)."""
