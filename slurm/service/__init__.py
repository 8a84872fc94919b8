"""The processes of a site whose nodes belong to a batch system: one requests the nodes, and each node runs one."""
