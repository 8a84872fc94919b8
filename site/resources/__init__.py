"""What nodes have and what jobs ask for: cores, memory, GPUs."""
