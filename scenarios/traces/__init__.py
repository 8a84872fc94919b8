"""Read, write, convert, fetch and describe traces."""
