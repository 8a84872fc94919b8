"""The command line. Each module holds one command; what is heavy to import stands inside the functions."""
