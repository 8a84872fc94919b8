"""A core's journal, from which its inputs, promises and answers are restored after failures (docs/journal.md)."""
