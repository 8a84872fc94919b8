"""Real processes on one machine: node tasks that outlive the process that started them (docs/live-processes.md)."""
