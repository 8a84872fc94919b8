"""Sweeps: the combinations of varied keys and seeds of a scenario, run in parallel, and what they amount to."""
