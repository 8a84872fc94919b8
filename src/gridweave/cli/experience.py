"""`gridweave experience`: what the jobs of each user and class have used, and what that suggests for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridweave.cli.arguments import Json
from gridweave.cli.options import named_as_typed, parse_bytes
from gridweave.cli.output import print_json, print_table, say
from gridweave.errors import not_installed
from gridweave.site.times import span_text

if TYPE_CHECKING:
    from gridweave.site.journal.experience import Learnt
    from gridweave.site.journal.records import Quantiles
    from gridweave.site.journal.suggest import Rule, Trial

Journals = Annotated[
    list[str],
    typer.Argument(metavar="JOURNAL...", help="Journals of sites: paths or URLs (postgresql://USER@HOST/DATABASE)."),
]
User = Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this user.")]
JobClass = Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this class.")]
Last = Annotated[int, typer.Option(metavar="N", help="Only the newest jobs of each user and class.")]
KillChance = Annotated[
    float, typer.Option(metavar="X", help="Accepted probability that the suggested limit kills the next job.")
]
Margin = Annotated[float, typer.Option(metavar="X", help="Safety margin on what was used, as a fraction.")]
DiskBandwidth = Annotated[
    str | None,
    typer.Option(metavar="SPEED", help="Disk bandwidth of a node, e.g. '200 MB/s'; needed for resource fractions."),
]
NodeMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory of a node, e.g. '64 GB'; needed for resource fractions.")
]

_NONE = "-"
_MOST_NAMES = 8


def experience(
    journals: Journals,
    user: User = None,
    job_class: JobClass = None,
    last: Last = 10_000,
    kill_chance: KillChance = 0.05,
    margin: Margin = 0.1,
    disk_bandwidth: DiskBandwidth = None,
    node_memory: NodeMemory = None,
    as_json: Json = False,
) -> None:
    """Show what the jobs of each user and class have used, and what to request for the next one.

    Example: gridweave experience north.journal --user anna --disk-bandwidth '200 MB/s' --node-memory '64 GB'
    """
    learn, rule = _library(
        kill_chance=kill_chance,
        margin=margin,
        disk_bps=None if disk_bandwidth is None else parse_bytes("--disk-bandwidth", disk_bandwidth, per_second=True),
        node_memory_bytes=None if node_memory is None else parse_bytes("--node-memory", node_memory),
    )
    with named_as_typed(journals="JOURNAL", journal="JOURNAL"):
        found = learn(journals, rule, user=user, job_class=job_class, last=last)
    if as_json:
        print_json([_as_plain(one) for one in found])
    elif not found:
        say("no job has ended yet")
    else:
        _print(found)


def _library(**options: float | None) -> tuple[Callable[..., list[Learnt]], Rule]:
    """Return what does the work; it needs a package that not everybody has installed."""
    try:
        from gridweave.site.journal.experience import learn
        from gridweave.site.journal.suggest import Rule
    except ImportError as error:
        raise not_installed(error.name) from None
    with named_as_typed(disk_bps="--disk-bandwidth", node_memory_bytes="--node-memory"):
        return learn, Rule(**options)  # type: ignore[arg-type]


def _as_plain(one: Learnt) -> dict[str, Any]:
    import msgspec

    return {"user": one.user, "job_class": one.job_class, **msgspec.to_builtins(one.experience)} | {
        "suggestion": msgspec.to_builtins(one.suggestion)
    }


def _print(found: Sequence[Learnt]) -> None:
    used = ("user", "class", "jobs", "run time 10%", "50%", "90%", "99%", "of estimate 50%", "90%", "CPU", "memory 90%")
    print_table(
        [(*_names(one), *_used(one)) for one in found],
        headings=(*used, "read 50%", "written 50%"),
        title="What jobs have used",
        left=2,
    )
    suggested = ("user", "class", "estimate", "killed", "used of it", "of asked", "killed", "used of it")
    rows = [(*_names(one), *_suggested(one)) for one in found]
    if any(cell != _NONE for row in rows for cell in row[2:]):
        headings = (*suggested, "cpu", "network", "disk", "memory")
        print_table(rows, headings=headings, title="Suggested for the next job", left=2)
    for line in _reasons(found):
        say(line)


def _names(one: Learnt) -> tuple[str, str]:
    return (one.user or _NONE, one.job_class or _NONE)


def _used(one: Learnt) -> tuple[str, ...]:
    known = one.experience
    run, part = known.run_ms, known.part_of_estimate
    return (
        f"{known.count:,}",
        *(_NONE if run is None else _span(value) for value in (_at(run, "p10", "p50", "p90", "p99"))),
        *(_NONE if part is None else f"{value:.0%}" for value in _at(part, "p50", "p90")),
        _NONE if known.cpu is None else f"{known.cpu.mean:.0%}",
        *(_bytes(value) for value in _at(known.memory_bytes, "p90")),
        *(_bytes(value) for value in (*_at(known.read_bytes, "p50"), *_at(known.write_bytes, "p50"))),
    )


def _at(spread: Quantiles | None, *quantiles: str) -> list[float]:
    return [-1.0 if spread is None else getattr(spread, name) for name in quantiles]


def _suggested(one: Learnt) -> tuple[str, ...]:
    advice = one.suggestion
    needs = advice.resources
    return (
        _NONE if advice.estimate_ms is None else span_text(advice.estimate_ms),
        *_tested(advice.estimate_tested),
        _NONE if advice.part_of_asked is None else f"{advice.part_of_asked:.1%}",
        *_tested(advice.part_tested),
        *(
            (_NONE,) * 4
            if needs is None
            else (f"{value:.3f}" for value in (needs.cpu, needs.network, needs.disk, needs.memory))
        ),
    )


def _tested(tested: Trial | None) -> tuple[str, str]:
    if tested is None or not tested.jobs:
        return _NONE, _NONE
    killed = f"{tested.killed:,} of {tested.jobs:,}"
    return killed, _NONE if tested.used is None else f"{tested.used:.0%}"


def _reasons(found: Sequence[Learnt]) -> list[str]:
    """Return why something is missing, each reason once, with those that it holds for."""
    whose: dict[str, list[str]] = {}
    for one in found:
        for reason in one.suggestion.reasons:
            whose.setdefault(reason, []).append("/".join(_names(one)))
    lines = []
    for reason, names in whose.items():
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        lines.append(reason if len(names) == len(found) else f"{', '.join(names[:_MOST_NAMES])}{more}: {reason}")
    return lines


def _span(time_ms: float) -> str:
    """Return a run time with about three digits."""
    if time_ms < 10_000:
        return f"{time_ms / 1000:.2f}s"
    return span_text(round(time_ms / 1000) * 1000)


def _bytes(value: float) -> str:
    if value < 0:
        return _NONE
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} PB"
