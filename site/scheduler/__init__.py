"""The scheduler of a site: its core, the contract with the grid, and the live site around both."""
