"""Run real processes on a machine, as node tasks that outlive the process that starts them (docs/live-processes.md)."""
