"""The compiled decisions of dynP: the plan of every candidate, what it is worth, and which is chosen."""
