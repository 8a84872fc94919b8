"""The studies use the fixtures of gridweave's own tests."""

from conftest import no_traces, trace_path

__all__ = ["no_traces", "trace_path"]
