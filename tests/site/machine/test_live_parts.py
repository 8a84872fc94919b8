"""The parts that need no runner: hardware threads, processes, output, usage, messages."""

from __future__ import annotations

import math
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.ranges import ranges_text
from gridweave.site.launch import Launch, NodeTaskState, Rank, Used, launch_problem
from gridweave.site.machine import processes
from gridweave.site.machine.agent import lane_threads, node_cores, parse_cpu_list, thread_siblings, usable_cores
from gridweave.site.machine.environment import rank_environment
from gridweave.site.machine.folders import (
    RESERVE,
    STATE,
    read_cancel,
    read_state,
    reserve,
    write_cancel,
    write_state,
    write_whole,
)
from gridweave.site.machine.output import RankOutput, output_path
from gridweave.site.machine.processes import boot_id, descendants, open_process, process_stat
from gridweave.site.machine.usage import Meter


@given(st.sets(st.integers(0, 300), min_size=1))
def test_lists_of_hardware_threads_are_read_as_they_are_written(threads: set[int]) -> None:
    """What the kernel's form says of a set of threads is that set."""
    assert parse_cpu_list(ranges_text(threads, ",")) == tuple(sorted(threads))


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1;2", "0x1"])
def test_a_list_of_hardware_threads_that_is_none(text: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(InputError, match=r"expected e\.g\. '0-3,8'"):
        parse_cpu_list(text)


def fake_sysfs(root: Path, siblings: dict[int, str | None], name: str = "thread_siblings_list") -> Path:
    """Write the part of sysfs that tells of hardware threads; ``None``: a thread that is switched off."""
    for number, text in siblings.items():
        (root / f"cpu{number}").mkdir(parents=True)
        if text is not None:
            (root / f"cpu{number}" / "topology").mkdir()
            if text:
                (root / f"cpu{number}" / "topology" / name).write_text(text + "\n")
    for other in ("cpufreq", "cpuidle"):
        (root / other).mkdir()
    return root


@pytest.mark.parametrize("name", ["thread_siblings_list", "core_cpus_list"])
def test_siblings_share_a_core(tmp_path: Path, name: str) -> None:
    """Each core is told once with all its threads, by either name of the file; threads that are off are left out."""
    known: dict[int, str | None] = {
        0: "0,4",
        4: "0,4",
        1: "1,5",
        5: "1,5",
        2: "2",
        3: "",
        6: None,
        10: "10-11",
        11: "10-11",
    }
    sysfs = fake_sysfs(tmp_path, known, name)
    assert thread_siblings(sysfs) == ((0, 4), (1, 5), (2,), (3,), (10, 11))
    assert usable_cores(sysfs, {0, 5, 10, 11, 99}) == ((0,), (5,), (10, 11))


def test_a_machine_without_hardware_threads(tmp_path: Path) -> None:
    """A folder that is no such part of sysfs is refused."""
    with pytest.raises(InputError, match="has no hardware thread"):
        thread_siblings(fake_sysfs(tmp_path, {0: None}))


def test_where_no_hardware_threads_are_told_ranks_are_bound_to_none(tmp_path: Path) -> None:
    """Some containers show no topology; their machines run jobs all the same."""
    assert node_cores(2, fake_sysfs(tmp_path, {0: None})) == ()


@pytest.mark.parametrize(
    ("cores", "lanes", "threads"),
    [
        # Siblings, where the cores have them: one job on the first of each core, its partner on the second.
        (((0, 4), (1, 5)), (1, 2), [(0, 1), (4, 5)]),
        (((0, 4), (1, 5)), (2, 2), [(0,), (4,), (1,), (5,)]),
        (((0, 2, 4, 6),), (1, 2), [(0, 4), (2, 6)]),
        # Virtual ones otherwise: cores are divided, and the last one is shared.
        (((0,), (1,), (2,), (3,)), (1, 2), [(0, 2), (1, 3)]),
        (((0,),), (1, 2), [(0,), (0,)]),
        (((0,), (1,)), (1, 4), [(0,), (1,), (0,), (1,)]),
        # One of its threads is switched off, or not for this process.
        (((0, 4), (1,)), (1, 2), [(0, 1), (4,)]),
        # Fewer cores than the site counts on.
        (((0, 1),), (2, 2), [(0,), (1,), (0,), (1,)]),
        ((), (1, 2), [(), ()]),
    ],
)
def test_partners_have_sibling_threads_or_virtual_ones(
    cores: tuple[tuple[int, ...], ...], lanes: tuple[int, int], threads: list[tuple[int, ...]]
) -> None:
    """Each thread that the site counts has threads of the node; the partners' differ as long as there are enough."""
    assert [lane_threads(cores, lanes, lane) for lane in range(math.prod(lanes))] == threads


def test_the_cores_of_this_machine_hold_the_threads_of_this_process() -> None:
    """On the real machine every thread that this process may use belongs to one core."""
    if not Path("/sys/devices/system/cpu/cpu0/topology").is_dir():
        pytest.skip("this machine shows no topology")
    assert sorted(thread for core in usable_cores() for thread in core) == sorted(os.sched_getaffinity(0))


def test_the_fork_server_loads_little() -> None:
    """What each fork would pay for is not loaded: numpy, or threading, whose work after each fork costs as much."""
    loaded = "sorted({'threading', 'asyncio', 'numpy'} & set(sys.modules))"
    code = f"import sys, gridweave.site.machine.forkserver; print({loaded})"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_process_is_told_by_number_and_start() -> None:
    """A pidfd is had of the very process only: not with another start, and not once it has ended."""
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b') Z 1 (', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stat = process_stat(child.pid)
        assert stat is not None
        assert (stat.parent, stat.state) in {(os.getpid(), "S"), (os.getpid(), "R"), (os.getpid(), "D")}
        handle = open_process(child.pid, stat.start_ticks)
        assert handle is not None
        os.close(handle)
        assert open_process(child.pid, stat.start_ticks + 1) is None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert open_process(child.pid, stat.start_ticks) is None
    assert process_stat(child.pid) is None
    assert open_process(child.pid, stat.start_ticks) is None
    assert len(boot_id()) == 36


def test_descendants_are_found_by_a_scan_as_by_the_kernels_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children and grandchildren are found, parents first, with and without the kernel's lists of children."""
    script = "sleep 1000 & echo; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = [stat.pid for stat in descendants(os.getpid())]
        assert child.pid in found
        below = [stat.pid for stat in descendants(child.pid)]
        assert len(below) == 1
        assert found.index(child.pid) < found.index(below[0])
        for lists in ([True] if Path(f"/proc/self/task/{os.getpid()}/children").exists() else []) + [False]:
            monkeypatch.setattr(processes, "_kernel_lists_children", lambda lists=lists: lists)
            assert [stat.pid for stat in descendants(child.pid)] == below
        os.killpg(child.pid, signal.SIGKILL)


def test_both_streams_of_a_rank_share_its_limit(tmp_path: Path) -> None:
    """Standard output and error are kept up to the limit together, each in its file; silence makes no file."""
    output = RankOutput(tmp_path, 3, 10)
    for writer, data in zip(output.writers, (b"out1", b"error1"), strict=True):
        os.write(writer, data)
    for reader in output.readers:
        assert output.pump(reader)
    assert (output.kept_bytes, output.problem) == (10, "")
    os.write(output.writers[0], b"more")
    output.finish()
    assert (output.kept_bytes, output.dropped_bytes) == (10, 4)
    kept = output_path(tmp_path, 3, "out").read_bytes()
    assert kept == b"out1\n[gridweave: output limit of 10 bytes reached; the rest is dropped]\n"
    assert output_path(tmp_path, 3, "err").read_bytes() == b"error1"
    silent = RankOutput(tmp_path, 4, 10)
    silent.finish()
    assert not output_path(tmp_path, 4, "out").exists()


def test_output_is_not_waited_for_when_someone_keeps_the_pipe(tmp_path: Path) -> None:
    """What is in the pipe at the end is taken; a writer that is still there does not hold the end up."""
    output = RankOutput(tmp_path, 0, 100)
    kept = os.dup(output.writers[0])
    os.write(kept, b"last words")
    output.finish()
    os.close(kept)
    assert output_path(tmp_path, 0, "out").read_bytes() == b"last words"


def test_output_that_can_nowhere_be_written_is_dropped(tmp_path: Path) -> None:
    """Where the file cannot be made, the output is dropped and counted, with the reason."""
    output_path(tmp_path, 0, "out").mkdir()
    output = RankOutput(tmp_path, 0, 100)
    os.write(output.writers[0], b"hello")
    output.finish()
    assert (output.kept_bytes, output.dropped_bytes) == (0, 5)
    assert output.problem == "output could not be written: Is a directory"


def ended_state(reason: str = "") -> NodeTaskState:
    """Return a last state."""
    return NodeTaskState(job_id=1, attempt=0, phase="ended", boot_id="b", outcome="failed", reason=reason)


def test_the_last_state_uses_the_room_set_aside(tmp_path: Path) -> None:
    """The last state takes the place of the reserve, with nothing behind it; without one it is written again."""
    reserve(tmp_path, 2)
    assert (tmp_path / RESERVE).stat().st_size >= 4096
    write_state(tmp_path, ended_state("first"))
    assert not (tmp_path / RESERVE).exists()
    assert read_state(tmp_path) == ended_state("first")
    assert (tmp_path / STATE).read_bytes() == msgspec.msgpack.encode(ended_state("first"))
    write_state(tmp_path, ended_state("second"))
    assert read_state(tmp_path) == ended_state("second")
    assert [path.name for path in tmp_path.iterdir()] == [STATE]


def test_a_secret_is_not_written_into_a_file_that_others_can_read(tmp_path: Path) -> None:
    """What an earlier process has left under the name of the temporary file is neither written into nor kept."""
    left = tmp_path / f".token.{os.getpid()}"
    left.write_text("old")
    left.chmod(0o644)
    os.link(left, tmp_path / "other-name")
    write_whole(tmp_path / "token", b"secret", mode=0o600)
    assert (tmp_path / "token").read_bytes() == b"secret"
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert (tmp_path / "other-name").read_text() == "old"


def test_the_first_wish_to_end_stays(tmp_path: Path) -> None:
    """Of several wishes the first is kept, and no other file."""
    assert read_cancel(tmp_path) is None
    assert write_cancel(tmp_path, "ä first")
    assert not write_cancel(tmp_path, "second")
    assert read_cancel(tmp_path) == "ä first"
    assert len(list(tmp_path.iterdir())) == 1


def test_samples_see_what_nobody_waits_for() -> None:
    """Memory and processor time of a child that runs are counted for the rank in whose session it is."""
    code = "b=bytearray(64<<20); import os\nwhile sum(os.times()[:2])<0.2: pass\nprint(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        meter = Meter(os.getpid())
        meter.add_rank(7, child.pid)
        assert meter.usage(7, 1.0) == Used(wall_s=1.0)
        assert meter.sample() > 0
        usage = meter.usage(7, 2.5)
        assert usage.cpu_s >= 0.2
        assert usage.peak_memory_bytes >= 64 << 20
        assert usage.wall_s == 2.5
        child.kill()


names = st.text(min_size=1, max_size=8)
launches = st.builds(
    Launch,
    job_id=st.integers(0, 2**40),
    attempt=st.integers(0, 9),
    ranks=st.lists(st.integers(0, 5), max_size=4).map(lambda numbers: tuple(map(Rank, numbers))),
    size=st.none() | st.integers(0, 6),
    argv=st.lists(names, max_size=3).map(tuple),
    environment=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    working_directory=st.none() | names,
    limit_ms=st.none() | st.integers(-1, 10),
)


@given(launches)
def test_a_launch_without_a_problem_can_be_handed_to_the_system(launch: Launch) -> None:
    """What is let through is what the operating system takes; the rest is refused in one line; it is stored whole."""
    problem = launch_problem(launch)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(launch), type=Launch) == launch
    if problem is not None:
        assert "\n" not in problem
        return
    rank = launch.ranks[0]
    environment = rank_environment(launch, Path("/folder"), rank, 0, "token", {"BASE": "1"})
    assert all(name and "=" not in name and "\0" not in name + value for name, value in environment.items())
    assert environment["GRIDWEAVE_JOB_ID"] == str(launch.job_id)
    assert int(environment["GRIDWEAVE_RANK"]) < int(environment["GRIDWEAVE_SIZE"])
    assert not any("\0" in text for text in launch.argv)
    assert launch.argv[0]
