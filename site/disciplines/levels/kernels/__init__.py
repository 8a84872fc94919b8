"""The kernels of levels: the order of the queue, and evictions before a pass."""
