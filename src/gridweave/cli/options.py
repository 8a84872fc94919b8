"""Parse the values of options for simulations into the library's types."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gridweave.errors import OptionError
from gridweave.site.times import parse_time_ms

if TYPE_CHECKING:
    import msgspec

    from gridweave.grid.config.toml import FileReport
    from gridweave.scenarios.workload.site_events import Request
    from gridweave.site.disciplines.entry import Entry, Policy
    from gridweave.site.policy import Limit, Window
    from gridweave.site.resources.chunks import NodeKind

T = TypeVar("T")

_TIME_OF_DAY = re.compile(r"(\d{1,2}):([0-5]\d)", re.ASCII)
_PER_CENT = re.compile(r"(\d{1,3}(?:\.\d+)?) ?%", re.ASCII)
_MAX_DIGITS = 15

_LIMIT_KEYS = ("wider-than", "longer-than", "user", "days", "from", "to", "max-nodes", "max-jobs")
_WINDOW_KEYS = ("days", "from", "to")
_KIND_KEYS = ("cores", "memory", "gpus", "gres", "labels", "speed")
_RESERVATION_KEYS = ("start", "length", "nodes", "requested")

# Arguments of the library whose options have other names.
_TYPED = {
    "aging_ms": "--aging",
    "factor": "--shrink",
    "limits": "--limit",
    "omega": "--estimates omega",
    "phi": "--estimates phi",
    "reservations": "--reservation",
}


@contextmanager
def named_as_typed(**typed: str) -> Iterator[None]:
    """Make errors that name an argument of the library name the option of the command instead.

    `typed` maps arguments to options where the names differ by more than hyphens.
    """
    try:
        yield
    except OptionError as error:
        if error.option.startswith("--"):
            raise
        raise OptionError(
            (_TYPED | typed).get(error.option, f"--{error.option.replace('_', '-')}"), error.problem
        ) from None


def check_seed(seed: int) -> None:
    """Raise OptionError for a negative seed."""
    if seed < 0:
        raise OptionError("--seed", f"is {seed}; expected a whole number, at least 0")


def split_names(option: str, text: str) -> list[str]:
    """Return the names in a comma-separated list, in lower case, without repetitions."""
    names = list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    if not names:
        raise OptionError(option, f"{text!r} contains no name; write one, or several with commas")
    return names


def parse_limit(text: str, nodes: int) -> Limit:
    """Parse a limit of a planning site, such as ``wider-than=75%,days=mon-fri,from=8:00,to=18:00``."""
    from gridweave.site.policy import Limit

    values = _pairs("--limit", text, _LIMIT_KEYS)
    effects = sum((bool(values.keys() & set(_WINDOW_KEYS)), "max-nodes" in values, "max-jobs" in values))
    if effects != 1:
        problem = "limits nothing" if effects == 0 else "limits more than one thing (use --limit twice)"
        raise OptionError(
            "--limit", f"{text!r} {problem}; give either a window (days, from, to), max-nodes or max-jobs"
        )
    return Limit(
        wider_than=_nodes("wider-than", values["wider-than"], nodes) if "wider-than" in values else 0,
        longer_than_ms=parse_time_ms("--limit longer-than", values.get("longer-than", "0")),
        user=_whole("user", values["user"]) if "user" in values else None,
        window=_window(values) if values.keys() & set(_WINDOW_KEYS) else None,
        max_nodes=_cap("max-nodes", values, nodes),
        max_jobs=_cap("max-jobs", values, nodes),
    )


def parse_reservation(number: int, text: str, nodes: int) -> Request:
    """Parse a request for an advance reservation, such as ``start=10d,length=2h,nodes=50%,requested=9d``.

    Times count from the start of the trace, which is also the default of ``requested``.
    """
    from gridweave.site.messages import ReservationRequested

    values = _pairs("--reservation", text, _RESERVATION_KEYS)
    missing = [key for key in _RESERVATION_KEYS[:3] if key not in values]
    if missing:
        raise OptionError("--reservation", f"{text!r} has no {missing[0]}; write start=10d,length=2h,nodes=64")
    start_ms, length_ms, requested_ms = (
        parse_time_ms(f"--reservation {key}", values.get(key, "0")) for key in ("start", "length", "requested")
    )
    width = _nodes("nodes", values["nodes"], nodes, option="--reservation")
    if length_ms < 1 or width < 1:
        key = "length" if length_ms < 1 else "nodes"
        raise OptionError(f"--reservation {key}", f"{values[key]!r} reserves nothing")
    return requested_ms, ReservationRequested(number, start_ms, length_ms, width)


def _pairs(option: str, text: str, valid_keys: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in text.split(","):
        key, separator, value = (part.strip() for part in pair.partition("="))
        key = key.lower()
        if not separator or key not in valid_keys:
            raise OptionError(option, f"{pair!r} is not key=value with a key of {', '.join(valid_keys)}")
        if key in values:
            raise OptionError(option, f"{key} appears twice in {text!r}; give it once, or use {option} twice")
        values[key] = value
    return values


def _cap(key: str, values: dict[str, str], nodes: int) -> int | None:
    if key not in values:
        return None
    cap = _nodes(key, values[key], nodes) if key == "max-nodes" else _whole(key, values[key])
    if cap < 1:
        raise OptionError(f"--limit {key}", f"{values[key]!r} is less than 1, so no job under the limit could start")
    return cap


def _whole(key: str, text: str, *, option: str = "--limit") -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise OptionError(f"{option} {key}", f"{text!r} is not a whole number of at most {_MAX_DIGITS} digits")
    return int(text)


def _nodes(key: str, text: str, nodes: int, *, option: str = "--limit") -> int:
    """Parse a number of nodes, or a percentage of `nodes`, which is rounded down."""
    if not text.endswith("%"):
        return _whole(key, text, option=option)
    match = _PER_CENT.fullmatch(text)
    share = Decimal(match.group(1)) if match else Decimal(101)
    if share > 100:
        raise OptionError(
            f"{option} {key}", f"{text!r} is not a number of nodes; write a number, or a percentage such as 75%"
        )
    return int(nodes * share / 100)


def _window(values: dict[str, str]) -> Window:
    from gridweave.site.policy import DAY_MS, Window

    from_ms = _time_of_day_ms("from", values.get("from", "0:00"))
    if from_ms == DAY_MS:
        raise OptionError("--limit from", f"{values['from']!r} is the end of a day; write 0:00")
    return Window(
        days=_days(values.get("days", "mon-sun")),
        from_ms=from_ms,
        to_ms=_time_of_day_ms("to", values.get("to", "24:00")) or DAY_MS,
    )


def _days(text: str) -> tuple[int, ...]:
    from gridweave.site.policy import DAYS

    days: set[int] = set()
    for part in text.lower().split("+"):
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        if first not in DAYS or last not in DAYS:
            raise OptionError("--limit days", f"{text!r} is not a list of days; write mon-fri, sat or mon+wed")
        start, stop = DAYS.index(first), DAYS.index(last)
        days.update(day % 7 for day in range(start, stop + (7 if stop < start else 0) + 1))
    return tuple(sorted(days))


def _time_of_day_ms(key: str, text: str) -> int:
    match = _TIME_OF_DAY.fullmatch(text)
    minutes = int(match.group(1)) * 60 + int(match.group(2)) if match else 24 * 60 + 1
    if minutes > 24 * 60:
        raise OptionError(f"--limit {key}", f"{text!r} is not a time of day; write 8:00 or 18:30")
    return minutes * 60_000


def parse_kinds(texts: list[str]) -> tuple[NodeKind, ...]:
    """Parse the kinds of a site's nodes.

    A text is ``gpu:2,cores=32,memory=512GB,gpus=a100:4,gres=fpga:2,labels=ib+ssd`` (name, number of nodes, and what
    each node has), or the name of a TOML file with ``kinds``, as in a scenario. Raise ScenarioError with all problems.
    """
    from gridweave.grid.config.checks import node_kinds
    from gridweave.grid.config.tables import KindTable
    from gridweave.grid.config.toml import convert_table
    from gridweave.site.resources.problems import OPTION_OF, kind_problems

    is_file = len(texts) == 1 and texts[0].lower().endswith(".toml")
    place: tuple[str, ...] = ("kinds",) if is_file else ()
    tables, report = _kinds_in(texts[0]) if is_file else _typed_kinds(texts)
    read = [convert_table(table, KindTable, (*place, number), report) for number, table in enumerate(tables)]
    report.raise_if_any()
    kinds = node_kinds(read, place, report)
    for number, field, problem in kind_problems(kinds):
        report.add((*place, number, OPTION_OF.get(field, field)), problem)
    report.raise_if_any()
    return kinds


def _kinds_in(file: str) -> tuple[list[object], FileReport]:
    """Return the tables of kinds in a TOML file, and a report for their problems."""
    from gridweave.grid.config.toml import parse_toml, text_of_file

    raw, report = parse_toml(file, text_of_file(Path(file)))
    tables = raw.get("kinds")
    if not isinstance(tables, list) or not tables or len(raw) > 1:
        report.add((), "expected one key, kinds, with at least one kind: kinds = [{ name = ..., count = ... }]")
        report.raise_if_any()
    return list(tables or ()), report


def _typed_kinds(texts: list[str]) -> tuple[list[object], FileReport]:
    """Return the tables of the kinds on the command line, and a report on the invalid texts."""
    from gridweave.grid.config.toml import FileReport

    tables: list[object] = []
    report = FileReport("--kinds")
    for number, text in enumerate(texts):
        try:
            tables.append(_kind_table(text))
        except OptionError as error:
            report.add((number,), error.problem)
    return tables, report


def _kind_table(text: str) -> dict[str, object]:
    """Return the table of a kind in the form ``gpu:2,cores=32,gpus=a100:4``."""
    head, _, rest = text.partition(",")
    name, colon, count = (part.strip() for part in head.partition(":"))
    if not colon or not name or not count.isascii() or not count.isdecimal():
        right = "expected NAME:COUNT and what each node has, e.g. gpu:2,cores=32,gpus=a100:4"
        raise OptionError("--kinds", f"{text!r} is not a kind of nodes; {right}")
    values = _pairs("--kinds", rest, _KIND_KEYS) if rest.strip() else {}
    table: dict[str, object] = {"name": name, "count": int(count), **values}
    for key in ("cores", "speed"):
        if key in values:
            table[key] = _value(values[key])
    if "gres" in values:
        amounts = (part.partition(":") for part in values["gres"].split("+"))
        table["gres"] = {name: _value(amount or "1") for name, _, amount in amounts}
    if "labels" in values:
        table["labels"] = values["labels"].split("+")
    return table


def policies(
    discipline: str,
    orders: str,
    backfills: str,
    choices: str,
    slack: float,
    aging: str,
    limits: list[str],
    own: list[str],
    nodes: int,
    kinds: tuple[NodeKind, ...] = (),
    placement: str = "best-fit",
) -> list[Policy]:
    """Return the policies that the options name: every combination of the lists."""
    from gridweave.site.disciplines.dictionary import entry_named, read_policy

    with named_as_typed():
        entry = entry_named(discipline.strip().lower())
    parsed = tuple(parse_limit(limit, nodes) for limit in limits)
    tables = own_options(entry, own)
    typed = {key: f"--option {key}" for key in (text.partition("=")[0].strip() for text in own)}
    of_site: dict[str, object] = {
        "slack": _unless(slack, 0.5),
        "aging_ms": _unless(_aging_ms(aging), float("inf")),
        "limits": parsed or None,
        "kinds": kinds or None,
        "placement": _unless(placement.strip().lower(), "best-fit"),
    }
    combinations = itertools.product(
        split_names("--order", orders), split_names("--backfill", backfills), split_names("--choice", choices), tables
    )
    with named_as_typed(**typed):
        return [
            read_policy(
                entry.name,
                nodes,
                {**_names(order, backfill, choice), **of_site, **table},
                {"order": order, "backfill": backfill},
            )
            for order, backfill, choice, table in combinations
        ]


def _aging_ms(text: str) -> float:
    aging_ms = float("inf") if text.strip().lower() == "none" else parse_time_ms("--aging", text)
    if aging_ms == 0:
        raise OptionError("--aging", f"{text!r} is too short; write a longer time such as 2h, or none")
    return aging_ms


def _names(order: str, backfill: str, choice: str) -> dict[str, object]:
    """Return the options of a policy that are names; None for the defaults."""
    return {
        "order": _unless(order, "fcfs"),
        "backfill": _unless(backfill, "easy"),
        "choice": _unless(choice, "first-fit"),
    }


def _unless(value: T, usual: T) -> T | None:
    """Return a value, or None if it is the default."""
    return None if value == usual else value


def _values(text: str, table: type[msgspec.Struct]) -> dict[str, list[object]]:
    """Return the values of each key in a text of --option."""
    if text.startswith("@"):
        return {key: [value] for key, value in _options_in(text[1:], table).items()}
    key, separator, written = (part.strip() for part in text.partition("="))
    if not (separator and key and written):
        raise OptionError("--option", f"{text!r} is not key=value, nor @FILE")
    return {key: [_value(item.strip()) for item in written.split(",")]}


def own_options(entry: Entry, texts: list[str]) -> list[dict[str, object]]:
    """Return tables of a discipline's own options, one for each combination of their values.

    A text is ``key=value`` (TOML or a bare word), ``key=value,value``, or ``@FILE``, a TOML file with such keys.
    OptionError or ScenarioError if the text is neither, or the discipline does not have the option.
    """
    if not texts:
        return [{}]
    from gridweave.grid.config.toml import FileReport, convert_table

    if entry.table is None:
        raise OptionError("--option", f"does not apply: the discipline {entry.name} has no options of its own")
    values: dict[str, list[object]] = {}
    for text in texts:
        values |= _values(text, entry.table)
    report = FileReport("--option")
    chosen = [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]
    tables = [{entry.table_key: convert_table(combination, entry.table, (), report)} for combination in chosen]
    report.raise_if_any()
    return tables


def _options_in(file: str, table: type[Any]) -> dict[str, Any]:
    """Return the options in a TOML file; errors name the line."""
    from gridweave.grid.config.toml import convert_table, parse_toml, text_of_file

    raw, report = parse_toml(file, text_of_file(Path(file)))
    convert_table(raw, table, (), report)
    report.raise_if_any()
    return raw


def _value(written: str) -> object:
    """Parse a TOML value; a bare word is a text."""
    try:
        return tomllib.loads(f"value = {written}\n")["value"]
    except ValueError:
        return written
