"""The kernels of levels: the order of the queue, and the evictions before a pass."""
