"""The processes of a site whose nodes belong to a batch system: the one that asks for nodes, and those on them."""
