"""The studies: transcribed numbers from the papers, and the simulations that recompute them."""
