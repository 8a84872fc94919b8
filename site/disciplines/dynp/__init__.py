"""dynP: a planning site that switches its policy while it is running (Streit, chapters 4 and 5; docs/dynp.md)."""
