"""Sites whose nodes are shared by jobs that do not disturb each other (docs/sharing.md)."""
