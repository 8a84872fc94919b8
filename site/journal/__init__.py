"""The journal of a core: its inputs, promises and answers, kept through failures (docs/journal.md)."""
