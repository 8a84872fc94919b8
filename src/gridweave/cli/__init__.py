"""The command line. Each module holds one command; functions import heavy modules themselves, to start quickly."""
