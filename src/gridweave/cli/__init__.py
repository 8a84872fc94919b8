"""The command line. Each module holds one command, and imports heavy modules inside functions to start quickly."""
