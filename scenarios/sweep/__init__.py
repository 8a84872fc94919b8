"""Sweeps: run the combinations of varied keys and seeds of a scenario in parallel, and summarize the results."""
