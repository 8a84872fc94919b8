"""Published tables and figures, transcribed, and what gridweave makes of the same workloads."""
