"""A schedule played as it stands, with the promises that disciplines would have given meanwhile."""
