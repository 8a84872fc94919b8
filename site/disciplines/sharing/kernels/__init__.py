"""The compiled rules of docs/sharing.md: which jobs share nodes, and how much sharing slows them."""
