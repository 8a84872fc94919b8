"""The network model: links between sites, and what it costs to send data over them."""
