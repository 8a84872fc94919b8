"""The resources of nodes, and jobs' requests for them: cores, memory, GPUs."""
