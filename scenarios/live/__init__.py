"""Live runs of scenarios, and their comparison with the simulation."""
