"""Fixtures that all tests share."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import platformdirs
import pytest

if TYPE_CHECKING:
    from client_helpers import Elsewhere

# Whoever starts the tests in the background may have them ignore interrupts, and all that they start with them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test fails because the machine was busy, or because a kernel had to be compiled first.
hypothesis.settings.register_profile("gridweave", deadline=None)
hypothesis.settings.load_profile("gridweave")

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


@pytest.fixture
def no_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Look for traces in an empty folder alone, and return it."""
    from gridweave.scenarios.traces import load

    folder = tmp_path / "traces"
    folder.mkdir()
    monkeypatch.setenv(load.FOLDER_VARIABLE, str(folder))
    monkeypatch.setattr(load, "cache_folder", lambda: tmp_path / "no-cache")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the grids that the user of this machine has configured, or runs, away from a test."""
    for name in sorted(os.environ):
        if name.startswith("GRIDWEAVE_") and name not in ("GRIDWEAVE_TRACES", "GRIDWEAVE_TOPOLOGIES"):
            monkeypatch.delenv(name)
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / f"no-{kind.lower()}"))


@pytest.fixture
def elsewhere(no_configuration: None) -> Iterator[Elsewhere]:
    """Start a gateway before a grid in memory, in another thread."""
    from client_helpers import Elsewhere

    there = Elsewhere()
    yield there
    there.close()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Join all tests that need Ray to one cluster of two workers on this machine; skip them where Ray is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray says while it is imported and started
        ray = pytest.importorskip("ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=128 << 20,
        )
    yield
    ray.shutdown()
