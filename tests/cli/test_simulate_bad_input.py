"""`gridweave simulate` with traces, options and folders that cannot be used: one line, and nothing written."""

from __future__ import annotations

import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gridweave.scenarios.results import schedule as result_files

SWF = """\
; MaxNodes: 4
1 0 -1 150 3 -1 -1 -1 100 -1 1 5 -1 -1 -1 -1 -1 -1
2 1 -1 0 1 -1 -1 -1 100 -1 1 5 -1 -1 -1 -1 -1 -1
3 1 -1 50 4 -1 -1 -1 60 -1 1 6 -1 -1 -1 -1 -1 -1
4 2 -1 90 1 -1 -1 -1 95 -1 1 6 -1 -1 -1 -1 -1 -1
"""

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write a trace that can be used."""
    path = tmp_path / "four.swf"
    path.write_text(SWF)
    return path


def write_bad_traces(folder: Path) -> dict[str, Path]:
    """Write a file of every kind that is no trace; return them by what is wrong."""
    contents: dict[str, bytes] = {
        "empty": b"",
        "comments alone": b"; MaxNodes: 4\n",
        "binary": bytes(range(256)) * 20,
        "cut off.xz": lzma.compress(SWF.encode() * 500)[:-30],
        "too few fields": SWF.replace(" -1 -1\n4", "\n4").encode(),
        "too many fields": (SWF + "5 3 -1 9 1" + " -1" * 14 + "\n").encode(),
        "no number": SWF.replace(" 50 ", " fifty ").encode(),
        "absurd width": SWF.replace(" 50 4 ", " 50 1000000000000 ").encode(),
        "no job left": b"; MaxNodes: 4\n1 0 -1 9 5" + b" -1" * 13 + b"\n",
        "no size": b"1 0 -1 9 5" + b" -1" * 13 + b"\n",
    }
    paths = {"missing": folder / "missing.swf", "folder": folder}
    for name, content in contents.items():
        paths[name] = folder / f"{name.removesuffix('.xz')}.swf{'.xz' if name.endswith('.xz') else ''}"
        paths[name].write_bytes(content)
    return paths


BAD_TRACES = {
    "missing": "there is no such file",
    "folder": "is a folder",
    "empty": "contains no jobs",
    "comments alone": "contains no jobs",
    "binary": ":1: ",
    "cut off.xz": "cannot be decompressed",
    "too few fields": ":4: has 16 fields; an SWF record has 18",
    "too many fields": ":6: has 19 fields",
    "no number": ":4: ",
    "absurd width": ":4: ",
    "no job left": "no job is left of 1 records",
    "no size": "give it with --nodes",
}


def refused(shell: Shell, out: Path, *arguments: object) -> str:
    """Run the command with --out; it must end with 2, one line and no file. Return the line."""
    status, printed, err = shell("simulate", *arguments, "--out", out)
    assert (status, printed) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("gridweave: ")
    assert not out.exists()
    return err


@pytest.mark.parametrize("kind", BAD_TRACES)
def test_bad_traces(shell: Shell, tmp_path: Path, kind: str) -> None:
    """What is no trace ends with 2 and one line that names the file, and the line in it; nothing is written."""
    path = write_bad_traces(tmp_path)[kind]
    line = refused(shell, tmp_path / "out", path)
    assert str(path) in line
    assert BAD_TRACES[kind] in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--nodes 0", "--nodes: 0 is not the size of a machine; give 1 to 10000000 nodes"),
        ("--nodes -5", "--nodes: -5 is not"),
        ("--nodes 10000000001", "--nodes: 10000000001 is not"),
        ("--order lifo", "--order: 'lifo' is not known; one of fcfs, sjf"),
        ("--order fcfs,lifo", "--order: 'lifo' is not known"),
        ("--order ,", "--order: ',' contains no name"),
        ("--backfill ,", "--backfill: ',' contains no name"),
        ("--backfill hard", "--backfill of a queue site: 'hard' is not known; one of easy, none"),
        ("--backfill slack --discipline planning", "--backfill of a planning site: 'slack' is not known"),
        ("--choice worst-fit", "--choice: 'worst-fit' is not known; one of first-fit, best-fit"),
        ("--choice best-fit --backfill none", "--choice: 'best-fit' only works with a queue"),
        ("--discipline sling", "--discipline: 'sling' is not known"),
        ("--slack nan", "--slack: is nan; expected a number from 0 to 10,000"),
        ("--slack -1", "--slack: is -1.0"),
        ("--aging 0", "--aging: '0' is too short"),
        ("--aging soon", "--aging: 'soon' is not a time"),
        ("--limit max-jobs=1", "--limit: only work with the discipline planning"),
        ("--discipline planning --limit wider-than=75%", "--limit: 'wider-than=75%' limits nothing"),
        ("--discipline planning --limit max-jobs=1 --limit days=monday", "--limit days: 'monday' is not"),
        ("--discipline planning --limit max-nodes=10%", "--limit max-nodes: '10%' is less than 1"),
        ("--estimates phi:2", "--estimates phi: 2.0 is not within 0 to 1"),
        ("--estimates omega:-1", "--estimates omega: -1.0 is not"),
        ("--estimates phi", "--estimates: 'phi' has no number"),
        ("--estimates guess", "--estimates: 'guess' is not known"),
        ("--shrink 0", "--shrink: 0.0 cannot be used; give a number greater than 0"),
        ("--shrink nan", "--shrink: nan cannot be used"),
        ("--shrink 1e300", "--shrink: 1e+300 times 2000 ms is more than"),
        ("--seed -1", "--seed: is -1; expected a whole number, at least 0"),
    ],
)
def test_bad_options(shell: Shell, trace: Path, tmp_path: Path, arguments: str, message: str) -> None:
    """An option that cannot be used ends with 2 and one line that begins with what was typed; nothing is written."""
    line = refused(shell, tmp_path / "out", trace, *arguments.split())
    assert line.startswith(f"gridweave: {message}")


def test_bad_names_are_found_before_a_trace_is_read(shell: Shell, tmp_path: Path) -> None:
    """A misspelt order is told at once, not after a long trace has been read: here there is none."""
    assert "--order: 'lifo'" in refused(shell, tmp_path / "out", tmp_path / "none.swf", "--order", "lifo")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("four.swf", "four.swf is a file; name a folder"),
        ("four.swf/sub/folder", "which is a file; name a folder"),
        ("", "'' is not the name of a folder"),
        ("x" * 300, "cannot be the name of a folder"),
        ("dangling", "dangling is a file; name a folder"),
    ],
)
def test_places_that_cannot_be_written_to(
    shell: Shell, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, message: str
) -> None:
    """A place where no folder can be is told before any work is done, and stays as it was."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    status, printed, err = shell("simulate", trace, "--out", out)
    assert (status, printed) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("gridweave: --out: ")
    assert message in err
    assert trace.read_text() == SWF
    assert {path.name for path in tmp_path.iterdir()} == {"four.swf", "dangling"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_place(shell: Shell, trace: Path, tmp_path: Path) -> None:
    """A folder that the user may not write to is told before any work is done."""
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o555)
    for out in (shut, shut / "sub" / "folder"):
        status, printed, err = shell("simulate", trace, "--out", out)
        assert (status, printed) == (2, "")
        assert err == f"gridweave: --out: {out} cannot be written to\n"


def test_an_interrupt_while_writing_leaves_nothing(
    shell: Shell, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while files are written leaves no folder, and ends with 130."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(result_files, "write_jobs_csv", interrupt)
    status, _, err = shell("simulate", trace, "--out", tmp_path / "out")
    assert status == 130
    assert err.splitlines()[-1] == "gridweave: interrupted"
    assert not (tmp_path / "out").exists()
