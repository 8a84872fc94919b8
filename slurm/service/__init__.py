"""The processes of a site whose nodes belong to a batch system: the site's actor, and an agent on each node."""
