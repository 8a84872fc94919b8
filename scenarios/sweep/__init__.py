"""Run a scenario with all combinations of varied keys and seeds in parallel, and summarize the results."""
