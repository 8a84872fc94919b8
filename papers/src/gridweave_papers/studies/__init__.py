"""The studies: published numbers, transcribed, and the simulations that recompute them."""
