"""The live grid: the meta-scheduler as an actor, and the code that starts it."""
