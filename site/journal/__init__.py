"""The journal of a core: its inputs, promises and answers, which survive failures (docs/journal.md)."""
