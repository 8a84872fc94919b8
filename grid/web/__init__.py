"""The grid in a browser: the pages that the gateway sends, and how a browser logs in (docs/web.md)."""
