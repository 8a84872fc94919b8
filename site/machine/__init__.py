"""Real processes on one machine: pieces of jobs that outlive whoever started them (docs/live-processes.md)."""
