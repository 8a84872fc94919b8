"""The planning site that chooses its policy while it runs: dynP (Streit, chapters 4 and 5; docs/dynp.md)."""
