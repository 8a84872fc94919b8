"""The live shell around a site's core: clock, actors, link to the grid, and answers to users."""
