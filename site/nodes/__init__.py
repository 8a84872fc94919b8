"""Which nodes a site has, which of them are free, and where they come from."""
