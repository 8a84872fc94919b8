"""The meta-scheduler: its core, and the live grid around it."""
