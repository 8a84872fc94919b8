"""What a core was told, promised and answered, kept so that it outlasts a failure (docs/journal.md)."""
