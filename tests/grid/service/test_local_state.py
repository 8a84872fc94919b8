"""What is written down of a grid on this machine, and ending exactly that; no Ray is needed for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.config.local_state import (
    GATEWAY,
    MARKER_VARIABLE,
    STATE,
    LocalGridState,
    LocalProcess,
    end_marked,
    end_processes,
    known_grids,
    make_private,
    read_grid_state,
    running_grid,
    state_folder,
    working_on,
    write_private,
    write_state,
)
from gridweave.grid.service.local import first_port_of, kept_secret, take_down
from gridweave.grid.service.ray import free_port, make_ray_token
from gridweave.site.machine.processes import all_pids, boot_id, process_stat
from support.machine import PATIENCE_S

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what these tests write down in a folder of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a line of shell as the leader of a session, and end all of them after the test."""
    children: list[subprocess.Popen[bytes]] = []

    def begin(line: str, **environment: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            ["sh", "-c", f"{line}; true"],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()  # it is ready when it has said something
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def a_process(child: subprocess.Popen[bytes], name: str = GATEWAY) -> LocalProcess:
    """Return a child as it is written down."""
    process = LocalProcess.of_pid(name, child.pid)
    assert process is not None
    return process


def a_state(folder: Path, *processes: LocalProcess, **changes: object) -> LocalGridState:
    """Return what is written down of a grid of these processes."""
    state = LocalGridState(
        name="test",
        marker="m",
        boot=boot_id(),
        since_ms=0,
        folder=str(folder / "live"),
        namespace="n",
        sites=(),
        processes=processes,
        url="http://127.0.0.1:1",
    )
    return msgspec.structs.replace(state, **changes)


def test_the_grid_of_the_user_is_found(tmp_path: Path, start: Start) -> None:
    """While a process of it lives a grid is found, with its address and its token; others cannot read that."""
    write_state(a_state(tmp_path, a_process(start("echo; sleep 1000"))))
    write_private(state_folder("test") / "token", "gw_1_2\n")
    found = running_grid("test")
    assert found is not None
    assert (found.url, found.token) == ("http://127.0.0.1:1", "gw_1_2")
    assert known_grids() == ["test"]
    assert stat.S_IMODE(state_folder("test").stat().st_mode) == 0o700
    assert stat.S_IMODE((state_folder("test") / "token").stat().st_mode) == 0o600
    assert running_grid("other") is None


def test_a_number_that_was_given_anew_is_not_taken_for_the_grid(tmp_path: Path, start: Start) -> None:
    """A process of the same number that started at another time, or on another day, is none of the grid."""
    process = a_process(start("echo; sleep 1000"))
    other = msgspec.structs.replace(process, start_ticks=process.start_ticks - 1)
    write_state(a_state(tmp_path, other))
    assert running_grid("test") is None
    write_state(a_state(tmp_path, process, boot="another"))
    assert running_grid("test") is None


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A state of another gridweave is no traceback; names that are no names are refused."""
    write_state(a_state(tmp_path))
    (state_folder("test") / STATE).write_text("{}")
    with pytest.raises(UnavailableError, match=r"grid\.json: cannot be read"):
        read_grid_state("test")
    for name in ("", "a/b", "..", "x" * 41, "ä"):
        with pytest.raises(OptionError, match="is not a valid name of a grid"):
            state_folder(name)


def test_two_do_not_work_on_one_grid_at_the_same_time() -> None:
    """Whoever starts or ends a grid keeps others from it meanwhile."""
    with working_on("test"):
        with pytest.raises(UnavailableError, match="another process"), working_on("test"):
            pass
        with working_on("other"):
            pass


def test_a_process_is_ended_with_its_session(start: Start) -> None:
    """What a process has started ends with it, also if it ignores TERM; other processes live on."""
    other = start("echo; sleep 1000")
    stubborn = start("trap '' TERM; sleep 1000 & echo; wait; sleep 1000")
    end_processes([a_process(stubborn)], patience_s=0.2)
    assert stubborn.wait(PATIENCE_S) == -signal.SIGKILL
    assert other.poll() is None
    there = [stat for stat in map(process_stat, all_pids()) if stat is not None and stat.session == stubborn.pid]
    assert [one for one in there if one.state not in "ZX"] == []


def test_what_has_the_marker_is_ended_wherever_it_is(start: Start) -> None:
    """Processes are known by the marker in their environment; of some sessions alone, if that is wished."""
    ours, job, other = (start("echo; sleep 1000", **{MARKER_VARIABLE: marker}) for marker in ("mine", "mine", "yours"))
    assert end_marked("mine", within=[ours.pid]) >= 1
    assert (ours.wait(PATIENCE_S), job.poll()) == (-signal.SIGKILL, None)
    assert end_marked("mine") >= 1
    assert job.wait(PATIENCE_S) == -signal.SIGKILL
    assert other.poll() is None


def test_a_grid_that_is_gone_is_taken_down_again_and_again(tmp_path: Path, start: Start) -> None:
    """Taking down ends what lives, removes the folder of Ray, and does nothing the second time."""
    child = start("echo; sleep 1000")
    temp = tmp_path / "gridweave-x"
    temp.mkdir()
    write_state(a_state(tmp_path, a_process(child), temp=str(temp)))
    done = take_down("test", keep_jobs=False, report=lambda what: None)
    assert done is not None
    assert done.ended == [GATEWAY]
    assert not temp.exists()
    child.wait(PATIENCE_S)
    assert take_down("test", keep_jobs=False, report=lambda what: None) is None
    assert take_down("never-there", keep_jobs=False, report=lambda what: None) is None
    assert not state_folder("never-there").exists()


def test_ports_and_secrets(tmp_path: Path) -> None:
    """Grids of other names have other ports for their ranks; secrets stay, and only the user can read them."""
    names = [f"grid-{number}" for number in range(50)]
    assert first_port_of("default") == 20_000
    assert all(21_000 <= first_port_of(name) < 32_000 and first_port_of(name) == first_port_of(name) for name in names)
    assert kept_secret(tmp_path, "secret") == kept_secret(tmp_path, "secret")
    make_ray_token(tmp_path / "ray-token")
    assert stat.S_IMODE((tmp_path / "ray-token").stat().st_mode) == 0o600
    port = free_port()
    assert free_port(preferred=port) == port
    assert port in range(8_800, 10_000), "no port that the kernel, or Ray, gives away meanwhile"
    with socket.create_server(("127.0.0.1", port)):
        assert free_port(preferred=port) not in (0, port)
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):  # where there is IPv6
        assert free_port("::1") in range(8_800, 10_000), "a gateway may listen there"


def test_who_looks_up_an_actor_loads_no_core() -> None:
    """The modules of the actors' classes, which each who calls them loads, load no compiler and no database."""
    code = (
        "import sys\n"
        "import gridweave.grid.service.actor, gridweave.site.service.actor, gridweave.site.service.agent_actor\n"
        "print(sorted({'numba', 'sqlalchemy', 'scipy', 'networkx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("passable", [False, True])
def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path, passable: bool) -> None:
    """One that is made is closed; nobody is locked out of theirs, and one that all may write in is refused."""
    assert make_private(tmp_path / "new", passable=passable).stat().st_mode & 0o777 == (0o711 if passable else 0o700)
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o775)
    assert make_private(there, passable=passable).stat().st_mode & 0o777 == 0o775
    there.chmod(0o750)
    assert make_private(there, passable=passable).stat().st_mode & 0o777 == (0o751 if passable else 0o750)
    there.chmod(0o777)
    with pytest.raises(InputError, match="all users may write to it"):
        make_private(there, passable=passable)
