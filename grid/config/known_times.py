"""Read experience files: tables ``[[experience]]`` with the run times of jobs (docs/experience.md)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gridweave.grid.config.toml import convert_table, parse_toml, text_of_file
from gridweave.site.known_times import KnownTimes


class _Tables(msgspec.Struct, forbid_unknown_fields=True):
    experience: list[KnownTimes] = []


def read_known_times(file: Path) -> tuple[list[KnownTimes], list[str]]:
    """Return the run times in a file, and the names of the file's other top-level keys.

    Raises
    ------
    ScenarioError
        If the file is invalid; the error lists all problems with their line numbers.
    InputError
        If the file cannot be read.
    """
    raw, report = parse_toml(str(file), text_of_file(file))
    table = convert_table({key: raw[key] for key in raw if key == "experience"}, _Tables, (), report)
    report.raise_if_any()
    for number, times in enumerate(table.experience):
        if problem := times.problem():
            report.add(("experience", number), problem)
    report.raise_if_any()
    return table.experience, [key for key in raw if key != "experience"]
