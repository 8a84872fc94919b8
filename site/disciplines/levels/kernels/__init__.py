"""Kernels for priority levels: the order of the queue, and evictions before a pass."""
