"""The network model: links between sites, and the cost of sending data over them."""
