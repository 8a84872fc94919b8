"""Who shares nodes with whom, and by how much that slows them: docs/sharing.md, compiled."""
