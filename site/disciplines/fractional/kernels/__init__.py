"""The kernels of fractional scheduling."""
