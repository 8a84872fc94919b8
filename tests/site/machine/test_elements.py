"""Packed arrays on a machine: every element runs, once, and what becomes of each is known."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.ranges import ranges_of
from gridweave.site.array_tasks import indexes_of, ranges_problem, share_of, without
from gridweave.site.machine import array_tasks
from gridweave.site.machine.folders import read_state, task_folder
from gridweave.site.machine.processes import open_process

if TYPE_CHECKING:
    from conftest import Machine, Post


@given(indexes=st.sets(st.integers(0, 60), max_size=40), widths=st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_the_pieces_of_a_job_share_its_elements(indexes: set[int], widths: list[int]) -> None:
    """All elements are somebody's, each once, and no rank has two more than another."""
    ranges, size, first = ranges_of(indexes), sum(widths), 0
    assert list(indexes_of(ranges)) == sorted(indexes)
    assert ranges_problem(ranges) is None
    found: list[int] = []
    for width in widths:
        share = list(indexes_of(share_of(ranges, first, width, size)))
        assert abs(len(share) - len(indexes) * width / size) < 1
        found, first = found + share, first + width
    assert found == sorted(indexes)


@given(indexes=st.sets(st.integers(0, 40)), done=st.sets(st.integers(0, 40)))
def test_what_is_done_is_not_left(indexes: set[int], done: set[int]) -> None:
    """Without those that are done the others are left."""
    assert set(indexes_of(without(ranges_of(indexes), done))) == indexes - done


@pytest.mark.asyncio
async def test_every_element_runs_once_and_has_its_own_end_and_output(machine: Machine) -> None:
    """Three ranks draw sixty elements; exit codes, signals and output are those of each."""
    code = 'i=$GRIDWEAVE_ARRAY_INDEX; echo "out $i"; echo $i >> ran; [ $i = 31 ] && echo bad >&2 && exit 3; '
    code += "[ $i = 44 ] && kill -9 $$; exit 0"
    ended = await machine.run(machine.launch("sh", "-c", code, ranks=3, array_tasks=((1, 31), (31, 51), (70, 80))))
    indexes = [*range(1, 51), *range(70, 80)]
    assert sorted(map(int, (machine.scratch / "ran").read_text().split())) == indexes
    assert [element.index for element in ended.array_tasks] == indexes
    assert ended.interrupted == ()
    assert ended.outcome == "failed"
    assert ended.reason == "2 array tasks failed: 31 (exit code 3), 44 (signal 9)"
    ends = {one.index: (one.exit_code, one.signal) for one in ended.array_tasks if one.failed}
    assert ends == {31: (3, None), 44: (None, 9)}
    for element in ended.array_tasks:
        start, size = element.out
        assert machine.output(rank=element.rank)[start : start + size] == f"out {element.index}\n"
        assert element.err[1] == (4 if element.index == 31 else 0)
    assert all(report.exit_code == 0 for report in ended.ranks)


@pytest.mark.asyncio
async def test_a_piece_without_elements_runs_nothing(machine: Machine) -> None:
    """A rank for which no element is left ends at once, and well."""
    ended = await machine.run(machine.launch("touch", "ran", ranks=2, array_tasks=()))
    assert (ended.outcome, ended.array_tasks, list(machine.scratch.iterdir())) == ("finished", (), [])


@pytest.mark.asyncio
async def test_elements_that_a_killed_shim_interrupts_are_told(machine: Machine, post: Post) -> None:
    """Those that had ended keep their ends; those that ran are told as interrupted, and leave no process."""
    code = '[ $GRIDWEAVE_ARRAY_INDEX -lt 5 ] || { echo $GRIDWEAVE_ARRAY_INDEX > "$POST"; exec sleep 1000; }'
    launch = machine.launch("sh", "-c", code, ranks=2, array_tasks=((1, 11),), environment={"POST": str(post.path)})
    async with machine.runner() as runner:
        await runner.start(launch)
        assert {await post.line(), await post.line()} == {"5", "6"}
        state = read_state(task_folder(machine.root, (1, 0)))
        assert state is not None
        shim = open_process(state.shim_pid, state.shim_start_ticks)
        assert shim is not None
        signal.pidfd_send_signal(shim, signal.SIGKILL)
        ended = await machine.ended(runner)
    assert ended.outcome == "lost"
    assert [element.index for element in ended.array_tasks] == [1, 2, 3, 4]
    assert ended.interrupted == (5, 6)


@pytest.mark.asyncio
async def test_output_beyond_the_limit_is_dropped(machine: Machine) -> None:
    """An element that writes more than a rank may has that much of it kept, and the next one runs."""
    ended = await machine.run(
        machine.launch("sh", "-c", "head -c 5000 /dev/zero", array_tasks=((0, 2),), output_limit_bytes=1000)
    )
    assert ended.outcome == "finished"
    assert [element.exit_code for element in ended.array_tasks] == [0, 0]
    assert ended.ranks[0].kept_bytes == 1000


def test_output_that_is_cut_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an element has left running may cut its output at any time; what is there still is handed on."""
    pread, looks = os.pread, iter(range(3))

    def cut_before(handle: int, size: int, offset: int) -> bytes:
        assert next(looks, None) is not None, "it is read again and again"
        os.ftruncate(handle, 4)
        return pread(handle, size, offset)

    with (tmp_path / "out").open("wb") as file:
        stream = array_tasks._Stream(tmp_path, file.fileno(), 100)
        os.write(stream.descriptor, b"0123456789")
        monkeypatch.setattr(os, "pread", cut_before)
        assert stream.hand_on() == (0, 4)
        stream._file.close()
    assert (tmp_path / "out").read_bytes() == b"0123"
