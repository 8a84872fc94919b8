"""What a machine has: its cores, memory and GPUs, and which of them each node gets."""
