"""Traces: read, written, converted, fetched and described."""
