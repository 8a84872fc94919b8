"""The rules of the network as compiled functions over arrays; docs/netmodel.md derives them."""
