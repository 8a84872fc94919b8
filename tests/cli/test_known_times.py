"""`gridweave experience` of run times on machines that differ: tables in a file, and those of a site of a grid."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from gridweave.site.known_times import KnownTimes, experience_text
from support.gateway import Elsewhere

Shell = Callable[..., tuple[int, str, str]]

KNOWN = (
    KnownTimes(user=7, runs=3, mean_ms=90_000, deviation_ms=1_500),
    KnownTimes(job_class=1, resource="west x 8", runs=12, mean_ms=61_000, deviation_ms=4_000),
    KnownTimes(job_class="cfd", runs=1, mean_ms=5_000),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write what a simulation has learned."""
    place = tmp_path / "experience.toml"
    place.write_text(experience_text(KNOWN), encoding="utf-8")
    return place


def rows(text: str) -> list[str]:
    """Return the rows of a table, with single blanks, without its title and headings."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip() and "──" not in line]
    return lines[2:]


@pytest.mark.parametrize("name", ["cfd", 'a "b" \\ c', "Müller", "ロケット🚀", "\x7f\n"])
def test_names_are_read_as_they_are_written(name: str) -> None:
    """Whatever characters a name has, the file is TOML."""
    (read,) = tomllib.loads(experience_text([KnownTimes(job_class=name, runs=1, mean_ms=5)]))["experience"]
    assert read["job_class"] == name


def test_a_file_is_shown(shell: Shell, file: Path) -> None:
    """Each kind of runs is a row; a class or a user alone where that is asked for; all of it as JSON."""
    status, out, err = shell("experience", file)
    assert (status, err) == (0, "")
    assert rows(out) == [
        "- 7 any, at speed 1 3 1 min 30 s 1.5 s",
        "1 - west x 8 12 1 min 1 s 4 s",
        "cfd - any, at speed 1 1 5 s 0 s",
    ]
    assert rows(shell("experience", file, "--job-class", 1)[1]) == ["1 - west x 8 12 1 min 1 s 4 s"]
    (found,) = json.loads(shell("experience", file, "--user", 7, "--json")[1])
    assert found == {"user": 7, "runs": 3, "mean_ms": 90_000, "deviation_ms": 1_500}


def test_a_file_is_edited(shell: Shell, file: Path, tmp_path: Path) -> None:
    """What is set is there, with what it left out as it was; what is forgotten is not; the rest stays."""
    sets = ("--set", "1@west x 8=2m", "--set", "cfd@old=30s,2s,5")
    assert shell("experience", file, *sets, "--forget", "user:7")[0] == 0
    assert tomllib.loads(file.read_text())["experience"] == [
        {"job_class": 1, "resource": "west x 8", "runs": 12, "mean_ms": 120_000, "deviation_ms": 4_000},
        {"job_class": "cfd", "runs": 1, "mean_ms": 5_000},
        {"job_class": "cfd", "resource": "old", "runs": 5, "mean_ms": 30_000, "deviation_ms": 2_000},
    ]
    before = file.read_text()
    other = tmp_path / "other.toml"
    assert shell("experience", file, "--forget", "cfd", "--job-class", 1, "--out", other)[0] == 0
    assert [one["job_class"] for one in tomllib.loads(other.read_text())["experience"]] == [1]
    assert file.read_text() == before


def test_a_site_is_shown_and_edited(shell: Shell, elsewhere: Elsewhere, tmp_path: Path) -> None:
    """What a site of the grid knows is shown, told better, forgotten, and written as a file."""
    elsewhere.grid.learned = {one.key: one for one in KNOWN}
    at = ("experience", "--url", elsewhere.url, "--site", "north")
    assert rows(shell(*at)[1])[1] == "1 - west x 8 12 1 min 1 s 4 s"
    place = tmp_path / "north.toml"
    status, out, err = shell(*at, "--set", "user:7=1m", "--forget", "cfd", "--out", place)
    assert (status, err) == (0, "")
    assert rows(out) == ["- 7 any, at speed 1 3 1 min 1.5 s", "1 - west x 8 12 1 min 1 s 4 s"]
    assert set(elsewhere.grid.learned) == {(None, "7", ""), ("1", None, "west x 8")}
    assert shell("experience", place)[1] == out
    status, out, err = shell("experience", "--url", elsewhere.url, "--site", "south")
    assert (status, out, err) == (
        2,
        "",
        "gridweave: site south does not learn run times; only sites whose machines differ do\n",
    )
    assert "'nowhere'" in shell("experience", "--url", elsewhere.url, "--site", "nowhere")[2]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--set", "cfd"), "--set: 'cfd' is not a run time; write CLASS@RESOURCE=MEAN"),
        (("--set", "cfd=fast"), "--set: 'fast' is not a time"),
        (
            ("--set", "cfd=0"),
            "--set: 'cfd=0': experience of job class cfd is out of range; expected",
        ),
        (("--set", "cfd=1s,0,x"), "--set: 'cfd=1s,0,x': 'x' is not a number of runs"),
        (("--set", "user:7@old=1s"), "--set: 'user:7@old' names no run time; write CLASS@RESOURCE, CLASS or user:NAME"),
        (("--forget", "dna"), "--forget: 'dna' is not known; there are user:7, 1@west x 8, cfd"),
        (("--forget", "cfd", "--set", "cfd=1s"), "--set, --forget: name the same times twice"),
        (("north.journal",), "give only one of these: journals, one FILE.toml, or --site"),
    ],
)
def test_bad_input_ends_in_one_line_and_changes_nothing(
    shell: Shell, file: Path, arguments: tuple[object, ...], told: str
) -> None:
    """What is wrong is said, with what would be right."""
    before = file.read_text()
    status, out, err = shell("experience", file, *arguments)
    assert (status, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert file.read_text() == before


def test_files_that_are_none_are_told(shell: Shell, tmp_path: Path) -> None:
    """What is wrong with the tables is said; a file with more than that is shown and not written; nor are journals."""
    file = tmp_path / "machines.toml"
    file.write_text("[[experience]]\njob_class = 1\nruns = 0\nmean_ms = 5\n[[experience]]\nrnus = 3\n")
    err = shell("experience", file)[2]
    assert "rnus" in err
    file.write_text('algorithm = "sjs"\n' + experience_text(KNOWN))
    assert len(rows(shell("experience", file)[1])) == 3
    assert (
        "also has algorithm; edit it by hand, or write to another file with --out"
        in shell("experience", file, "--forget", "cfd")[2]
    )
    assert "journals are not changed" in shell("experience", "north.journal", "--forget", "cfd")[2]
