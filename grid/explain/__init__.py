"""When a job of the grid starts, and why not sooner."""
