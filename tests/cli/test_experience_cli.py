"""The command `gridweave experience`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gridweave.errors import OptionError
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.records import JobUsage
from gridweave.site.scheduler.contract import ContractEvent
from gridweave.values import parse_bytes

Shell = Callable[..., tuple[int, str, str]]

MACHINE = ("--disk-bandwidth", "100 MB/s", "--node-memory", "10 GB")


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a journal with the jobs of three users, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    place = tmp_path / "north.journal"
    with Journal(place, event_type=ContractEvent) as opened, opened.step() as step:
        for number in range(40):
            run_ms = 10_000 + 1000 * number
            step.usage(
                JobUsage(
                    job_id=number,
                    user="anna",
                    job_class="render",
                    at_ms=100_000 * number + run_ms,
                    width=2,
                    estimate_ms=2 * run_ms,
                    run_ms=run_ms,
                    cpu=0.5,
                    memory_bytes=10**9,
                    read_bytes=run_ms * 20_000,  # of 200,000 bytes/ms
                    write_bytes=0,
                )
            )
        for number in range(5):
            step.usage(JobUsage(job_id=number, user="bert", at_ms=number, width=1, estimate_ms=0, run_ms=1))
        step.usage(JobUsage(job_id=99, at_ms=1, width=1, estimate_ms=5, run_ms=5))
    return place


def squeezed(text: str) -> list[str]:
    """Return lines with single blanks."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_experience_prints_what_was_used_and_what_follows(shell: Shell, journal: Path) -> None:
    """Each user and class has a row in both tables; why something is missing is a remark on standard error."""
    status, out, err = shell("experience", journal, *MACHINE)
    lines = squeezed(out)
    assert status == 0
    assert "anna render 40 14 s 30 s 45 s 49 s 50% 50% 50% 1 GB 590 MB 0 B" in lines
    # The 39th of 40 run times, 48 s, and a tenth more.
    assert "anna render 53 s 0 of 21 92% 55.0% 0 of 21 91% 0.500 0.400 0.100 0.110" in lines
    assert "bert - 5 1 ms 1 ms 1 ms 1 ms - - - - - -" in lines
    assert "bert/-: too few jobs: 5; 19 are needed for a chance of 5%" in err
    assert "-/-: too few jobs: 1" in err


def test_experience_without_the_machine(shell: Shell, journal: Path) -> None:
    """Without bandwidth and memory of a node there are no fractions; only the user that is asked for is shown."""
    status, out, err = shell("experience", journal, "--user", "anna", "--margin", 0, "--kill-chance", 0.1)
    lines = squeezed(out)
    assert status == 0
    assert "anna render 46 s 31 of 31 - 50.0% 0 of 31 100% - - - -" in lines
    assert err == "no resource fractions: the bandwidth of a node's disk is unknown\n"
    assert "bert" not in out


def test_nothing_to_suggest_is_no_table(shell: Shell, journal: Path) -> None:
    """Where nobody has jobs enough there is no table of suggestions."""
    status, out, err = shell("experience", journal, "--user", "bert", *MACHINE)
    assert status == 0
    assert "Suggested" not in out
    assert err == "too few jobs: 5; 19 are needed for a chance of 5%\n"


def test_experience_for_machines(shell: Shell, journal: Path) -> None:
    """All of it is there as JSON, in base units."""
    found = json.loads(shell("experience", journal, *MACHINE, "--json")[1])
    assert [(one["user"], one["job_class"], one["count"]) for one in found] == [
        (None, None, 1),
        ("anna", "render", 40),
        ("bert", None, 5),
    ]
    suggestion = found[1]["suggestion"]
    assert suggestion["estimate_ms"] == 53_000
    assert suggestion["estimate_tested"]["jobs"] == 21
    assert suggestion["resources"]["network"] == 0.4
    assert found[1]["run_ms"]["most"] == 49_000
    assert found[0]["suggestion"]["estimate_ms"] is None


def test_a_journal_without_experience(shell: Shell, tmp_path: Path) -> None:
    """A site where no job has ended is no error."""
    place = tmp_path / "empty.journal"
    Journal(place, event_type=ContractEvent).close()
    assert shell("experience", place) == (0, "", "no job has ended yet\n")
    assert json.loads(shell("experience", place, "--json")[1]) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--user", "carl"), "--user: 'carl' has no jobs in"),
        (("--job-class", "mesh"), "--job-class: 'mesh' has no jobs in"),
        (("--last", 0), "--last: is 0"),
        (("--margin", "-1"), "--margin: is -1"),
        (("--kill-chance", 0.9), "--kill-chance: is 0.9"),
        (("--disk-bandwidth", "fast"), "--disk-bandwidth: 'fast' is not an amount of data; write for example 200 MB/s"),
        (("--node-memory", "5 GB/s"), "--node-memory: '5 GB/s' is not an amount of data; write for example 64 GB"),
        (("mysql://host/db",), "JOURNAL: is a URL of mysql"),
        (("/nowhere/to.journal",), "this journal does not exist"),
        ((__file__,), "file is not a database"),
    ],
)
def test_bad_input_ends_in_one_line(shell: Shell, journal: Path, arguments: tuple[object, ...], told: str) -> None:
    """What is wrong is said in one line, with exit status 2, and nothing is printed."""
    status, out, err = shell("experience", journal, *arguments)
    assert (status, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_what_is_not_installed_is_said(shell: Shell, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package that reads journals the command says how to install it."""
    for name in ("experience", "reader", "store", "tables", "step"):
        monkeypatch.delitem(sys.modules, f"gridweave.site.journal.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    told = "gridweave: sqlalchemy is not installed; in a checkout of gridweave run: pip install '.[live]'\n"
    assert shell("experience", journal) == (3, "", told)


def test_no_journal_is_named(shell: Shell) -> None:
    """At least one journal is needed."""
    status, _, err = shell("experience")
    assert status == 2
    assert "JOURNAL" in err


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("1.5 kB", 1500), ("1.5KiB", 1536), ("2 tb", 2e12), ("64G", 64e9), ("1 GiB", 2**30), ("8 B", 8)],
)
def test_amounts_of_data(text: str, value: float) -> None:
    """Prefixes are powers of 1000, and of 1024 with an i; a speed is an amount per second."""
    assert parse_bytes("--size", text) == value
    assert parse_bytes("--size", f"{text}/s", per_second=True) == value
    with pytest.raises(OptionError, match="--size"):
        parse_bytes("--size", f"{text}/s")


@pytest.mark.parametrize("text", ["", "GB", "-1 GB", "0", "1 XB", "1e9", "inf", "1 G B", "9" * 400])
def test_what_is_no_amount_of_data(text: str) -> None:
    """Anything else is refused, with what would be right."""
    with pytest.raises(OptionError, match="--size"):
        parse_bytes("--size", text)
