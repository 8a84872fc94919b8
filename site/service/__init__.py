"""The live parts around a site's core: the clock, the actors, the link to the grid, and the answers to users."""
