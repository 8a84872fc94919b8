"""The HTTP gateway of a live grid, for users and operators."""
