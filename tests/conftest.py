"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

TracePath = Callable[[str], Path]


@pytest.fixture(scope="session")
def trace_path() -> TracePath:
    """Return a function from the name of a real trace to its file; it skips the test where the trace is not at hand."""

    def find(name: str) -> Path:
        folders = [Path(os.environ["GRIDWEAVE_TRACES"])] if os.environ.get("GRIDWEAVE_TRACES") else []
        folders.append(platformdirs.user_cache_path("gridweave") / "traces")
        for folder in folders:
            for path in sorted(folder.glob(f"{name}*.swf*")):
                return path
        pytest.skip(f"trace {name} is not at hand: set GRIDWEAVE_TRACES or run `gridweave trace fetch {name}`")

    return find
