"""A simulation that is interrupted and resumed gives the same schedule as one that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch import one_site
from gridweave.scenarios.batch.saving import Saving
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.site_events import NodeEvent
from gridweave.scenarios.workload.table import Workload
from support.builders import cancelling, random_jobs, to_workload

NODES = 16
OPTIONS: list[dict[str, Any]] = [
    {},
    {"backfill": "conservative", "order": "sjf"},
    {"backfill": "slack", "choice": "best-fit"},
    {"discipline": "planning", "order": "ljf"},
    {
        "node_events": [
            NodeEvent(at_ms=60, kind="down", first_node=0, nodes=4),
            NodeEvent(at_ms=300, kind="up", first_node=0, nodes=4),
        ]
    },
]


class BrokenOffError(Exception):
    """The simulation was interrupted."""


def jobs(seed: int) -> Workload:
    """Return the jobs of a loaded site, some of them cancelled."""
    rng = np.random.default_rng(seed)
    return cancelling(rng, to_workload(random_jobs(rng, 300, nodes=NODES, load=0.95)))


def broken_off(workload: Workload, saving: Saving, after: int, **options: Any) -> None:
    """Interrupt a simulation after some pieces, each of which is saved."""
    played = 0

    def progress(done: int, total: int) -> None:
        nonlocal played
        played += 1
        if played > after and done < total:
            raise BrokenOffError

    with pytest.raises(BrokenOffError):
        simulate(workload, NODES, saving=saving, progress=progress, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_interrupted_simulation_gives_the_same_schedule(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is removed at the end."""
    rng = np.random.default_rng(OPTIONS.index(options))
    path = tmp_path / "saved"
    for seed in range(10):
        workload = jobs(seed)
        whole = simulate(workload, NODES, **options)
        monkeypatch.setattr(one_site, "_CHUNK", int(rng.integers(1, 40)))
        pieces = 299 // one_site._CHUNK
        first = int(rng.integers(0, pieces))
        broken_off(workload, Saving(path, every_s=0), first, **options)
        if first + 1 < pieces:
            broken_off(workload, Saving(path, every_s=0, resume=True), first + 1, **options)
        result = simulate(workload, NODES, saving=Saving(path, resume=True), **options)
        assert result.start_ms.tolist() == whole.start_ms.tolist()
        assert result.end_ms.tolist() == whole.end_ms.tolist()
        assert result.own_metrics == whole.own_metrics
        assert not path.exists()


def test_resuming_uses_the_saved_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed times in the file appear in the result."""
    monkeypatch.setattr(one_site, "_CHUNK", 30)
    path = tmp_path / "saved"
    broken_off(jobs(1), Saving(path, every_s=0), 8)
    with np.load(path, allow_pickle=False) as kept:
        arrays = {name: kept[name] for name in kept.files}
    starts = next(name for name in arrays if name.endswith("4.2"))
    assert arrays[starts][0] == simulate(jobs(1), NODES).start_ms[0]
    arrays[starts][0] += 1
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    result = simulate(jobs(1), NODES, saving=Saving(path, resume=True))
    assert (result.start_ms != simulate(jobs(1), NODES).start_ms).tolist() == [True] + [False] * 299


def test_it_is_saved_at_intervals_and_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_site, "_CHUNK", 50)
    now_s, written = 0.0, []

    def clock() -> float:
        nonlocal now_s
        now_s += 1
        return now_s

    saving = Saving(tmp_path / "saved", every_s=2.5, clock=clock)
    monkeypatch.setattr(saving, "save", lambda: written.append(now_s))
    simulate(jobs(2), NODES, saving=saving)
    assert (written[0], len(written)) == (5.0, 4)
    asked = Saving(tmp_path / "saved", every_s=1e9)
    asked.ask()
    broken_off(jobs(2), asked, 1)
    assert asked.saved.is_set()
    assert (tmp_path / "saved").exists()


def test_unusable_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_site, "_CHUNK", 50)
    path = tmp_path / "saved"
    broken_off(jobs(3), Saving(path, every_s=0), 2)
    for workload, options in ((jobs(4), {}), (jobs(3), {"backfill": "none"})):
        with pytest.raises(InputError, match="saved: belongs to another simulation; resume it with its original trace"):
            simulate(workload, NODES, saving=Saving(path, resume=True), **options)
    with np.load(path, allow_pickle=False) as kept:
        arrays = {name: kept[name] for name in kept.files}
    arrays["about"] = np.array(["0", arrays["about"][1]])
    with (tmp_path / "old").open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    with pytest.raises(InputError, match="old: was saved by another version of gridweave"):
        simulate(jobs(3), NODES, saving=Saving(tmp_path / "old", resume=True))
    (tmp_path / "text").write_text("hello")
    data = bytearray((tmp_path / "old").read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(header) + flags] |= 1  # it is said to be encrypted
    (tmp_path / "locked").write_bytes(data)
    with (tmp_path / "array").open("wb") as file:
        np.save(file, np.zeros(3))
    with (tmp_path / "other").open("wb") as file:
        np.savez(file, about=np.array("1"))
    with pytest.raises(InputError, match="other: belongs to another simulation"):
        simulate(jobs(3), NODES, saving=Saving(tmp_path / "other", resume=True))
    for name in ("none", "text", "array", "locked"):
        with pytest.raises(InputError, match=f"{name}: cannot be read as a saved simulation"):
            simulate(jobs(3), NODES, saving=Saving(tmp_path / name, resume=True))
    with pytest.raises(OptionError, match="saving: is not used by a grid"):
        simulate(jobs(3), [8, 8], GridPolicy(), saving=Saving(path))
    with pytest.raises(OptionError, match="save: works with discipline queue or planning"):
        simulate(jobs(3), NODES, driver="core", saving=Saving(path))
