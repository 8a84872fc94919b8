"""The disciplines by which sites schedule, with one entry for each."""
