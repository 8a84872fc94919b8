"""The nodes of a site: which are free, and whether the site owns them or a batch system lends them."""
