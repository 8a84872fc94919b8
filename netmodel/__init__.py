"""Links between sites: what it costs to cross them."""
