"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import hypothesis
import platformdirs
import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

    from support.gateway import Elsewhere

# Tests that are started in the background may ignore interrupts, and would pass that on to their child processes.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Garbage collection takes a tenth of the time of tests that compile or compare with a reference, and finds little.
gc.set_threshold(100_000, 20, 50)

# No deadlines: a test must not fail because the machine is busy or a kernel has to be compiled first.
hypothesis.settings.register_profile("gridweave", deadline=None)
hypothesis.settings.load_profile("gridweave")

TracePath = Callable[[str], Path]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files with Ray first, then slow ones, then large ones, so that the workers end at about the same time."""
    if not hasattr(config, "workerinput"):
        return
    sizes = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    ray = {item.path for item in items if item.get_closest_marker("ray")}
    # Files that use Ray go to two workers (below) and keep their order.
    items.sort(key=lambda item: (0, 0) if item.path in ray else (1 if item.path in slow else 2, -sizes[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Give all files that share a Ray cluster to one worker, and all files that start their own Ray to another.

    Both workers wait most of the time, so the other workers can use the processors.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        """Distributes files to workers, with one worker for each kind of Ray test."""

        files: ClassVar[dict[str, str]] = {}

        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if file not in self.files:
                text = (config.rootpath / file).read_text(encoding="utf-8")
                is_shared = "ray_cluster" in text
                self.files[file] = ("shared ray" if is_shared else "ray") if "pytest.mark.ray" in text else file
            return self.files[file]

    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def trace_path() -> TracePath:
    """Return a function from the name of a real trace to its file; it skips the test if the trace is missing."""

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
    """Let gridweave look for traces only in an empty folder, and return that folder."""
    from gridweave.scenarios.traces import load

    folder = tmp_path / "traces"
    folder.mkdir()
    monkeypatch.setenv(load.FOLDER_VARIABLE, str(folder))
    monkeypatch.setattr(load, "cache_folder", lambda: tmp_path / "no-cache")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the grids that this machine's user has configured or runs from a test."""
    for name in sorted(os.environ):
        if name.startswith("GRIDWEAVE_") and name not in ("GRIDWEAVE_TRACES", "GRIDWEAVE_TOPOLOGIES"):
            monkeypatch.delenv(name)
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / f"no-{kind.lower()}"))


@pytest.fixture
def elsewhere(no_configuration: None) -> Iterator[Elsewhere]:
    """Start a gateway to a grid in memory, in another thread."""
    from support.gateway import Elsewhere

    there = Elsewhere()
    yield there
    there.close()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Connect all tests that need Ray to one cluster of two workers on this machine; skip them without Ray."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own warnings on import and start
        ray = pytest.importorskip("ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=128 << 20,
            # Workers need this process's search path to find the actors of tests.
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}},
        )
    yield
    ray.shutdown()
