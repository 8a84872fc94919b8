"""The cores, memory and GPUs of a machine, and their assignment to nodes."""
