"""The live grid: the meta-scheduler as an actor, and what starts it."""
