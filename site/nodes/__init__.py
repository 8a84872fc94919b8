"""A site's nodes: which nodes are free, and whether the site owns them or a batch system provides them."""
