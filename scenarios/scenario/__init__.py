"""Read, check, build and run scenarios: files that contain a grid, a workload and a policy (docs/scenarios.md)."""
