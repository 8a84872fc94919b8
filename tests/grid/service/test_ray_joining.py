"""How a process joins a Ray of one's own, whose head may give up, and how it hears that Ray is gone."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gridweave.errors import UnavailableError
from gridweave.grid.config.local_state import HEAD, LocalProcess
from gridweave.grid.service import ray as own_ray
from gridweave.grid.service.ray import OwnRay, RayMachine, watch_node
from gridweave.grid.service.ray_nodes import Launching


def looks(*answers: object) -> int:
    """Return after how many looks at these answers the node "a" was given up; the last answer stays."""
    count = itertools.count(1)
    told = itertools.chain(answers, itertools.repeat(answers[-1]))
    seen = []

    def nodes() -> Any:
        answer = next(told)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch_node("a", nodes, lambda: seen.append("lost"), lambda: next(count))
    assert seen == ["lost"]
    return next(count) - 1


def test_a_node_is_gone_when_it_was_missed_several_times_on_end() -> None:
    """One that is dead, that a new Ray does not know, or of which nobody can tell, is given up; else not."""
    here, dead, other = {"NodeID": "a", "Alive": True}, {"NodeID": "a", "Alive": False}, {"NodeID": "b", "Alive": True}
    assert looks([other, here], [dead]) == 4
    assert looks([here], [other]) == 4
    assert looks([here], ConnectionError("no head")) == 4
    assert looks([here], [other], RuntimeError("busy"), [here], []) == 7


class Heads:
    """Starts processes that do nothing in place of Ray's; of the heads some never listen, others end when asked.

    Parameters
    ----------
    fates : sequence of str
        Of one head after the other: ``silent``, ``ends`` or ``works``; the last one is that of all others.
    """

    def __init__(self, *fates: str) -> None:
        self.fates, self.begun, self.processes = list(fates), 0, dict[int, Any]()
        self.problem: str | None = None

    @property
    def fate(self) -> str:
        """Of the head that was started last."""
        return self.fates[min(self.begun, len(self.fates)) - 1]

    def __call__(self, *_: object) -> Heads:
        """Take the place of the class of launchers."""
        return self

    def launch(self, task: Launching) -> Iterator[LocalProcess]:
        """Start what is asked for."""
        self.begun += task.head is not None
        self.problem = "the node timed out" if self.fate == "silent" else None
        for node in (*([task.head] if task.head is not None else []), *task.nodes):
            process = subprocess.Popen(["sleep", "600"], start_new_session=True)
            self.processes[process.pid] = process
            found = LocalProcess.of_pid(node.name, process.pid)
            assert found is not None
            yield found

    def close(self) -> list[LocalProcess]:
        """Be done."""
        return []

    def join(self, head: LocalProcess | None) -> None:
        """Join the cluster, as far as there is one."""
        assert head is not None
        if self.fate != "works":
            process = self.processes[head.pid]
            process.kill()
            process.wait()
            raise UnavailableError("no head")

    def end(self) -> list[int]:
        """End what is left; return its numbers."""
        left = [pid for pid, process in self.processes.items() if process.poll() is None]
        for process in self.processes.values():
            process.kill()
            process.wait()
        return left


def begun(monkeypatch: pytest.MonkeyPatch, folder: Path, heads: Heads, said: list[str]) -> OwnRay:
    """Return a Ray of one's own that such processes stand for."""
    ray = OwnRay(folder, [RayMachine("north", "m0")], marker="marker", report=said.append)
    monkeypatch.setattr(own_ray, "Launcher", heads)
    monkeypatch.setattr(own_ray, "check_ray", lambda: None)
    monkeypatch.setattr(own_ray, "join", lambda *_, **__: heads.join(ray.process(HEAD)))
    monkeypatch.setitem(own_ray.sys.modules, "ray", SimpleNamespace(shutdown=lambda: None))  # type: ignore[arg-type]
    return ray


@pytest.mark.parametrize("fate", ["silent", "ends"])
def test_a_head_that_gives_up_is_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fate: str) -> None:
    """Also with all nodes, at the same port and behind the same token; nothing of the first one is left."""
    heads, said = Heads(fate, fate, "works"), list[str]()
    ray = begun(monkeypatch, tmp_path, heads, said)
    try:
        ray.start()
        first = ray.address, (tmp_path / own_ray.RAY_TOKEN).read_text()
        with ray.connected():
            there = {process.name for process in ray.state.processes if process.is_alive}
    finally:
        left = heads.end()
    assert (heads.begun, len(left)) == (3, 2)
    assert there == {HEAD, RayMachine("north", "m0").node}
    assert first == (ray.address, (tmp_path / own_ray.RAY_TOKEN).read_text())
    assert [line.partition(" (")[0] for line in said] == ["Ray's head has given up"] * 2
    own_ray.remove_temp(ray.state.temp)


@pytest.mark.parametrize(
    ("fate", "problem"), [("silent", "Ray cannot be started"), ("ends", "its head has given up 3 times")]
)
def test_a_head_that_never_comes_up_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fate: str, problem: str
) -> None:
    """After the third one it is said why."""
    heads, said = Heads(fate), list[str]()
    ray = begun(monkeypatch, tmp_path, heads, said)
    try:
        with pytest.raises(UnavailableError, match=problem):  # noqa: PT012 - one kind of head gives up early, one late
            ray.start()
            with ray.connected():
                pass
    finally:
        ray.end_nodes()
        left = heads.end()
    assert (heads.begun, len(said), left) == (3, 2, [])
