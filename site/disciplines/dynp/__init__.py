"""dynP: a planning site that chooses its policy while it runs (Streit, chapters 4 and 5; docs/dynp.md)."""
