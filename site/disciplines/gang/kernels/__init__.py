"""The kernels of gang scheduling."""
