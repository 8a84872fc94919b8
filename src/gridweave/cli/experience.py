"""`gridweave experience`: what the jobs of each user and class used, and what to request for the next job.

For sites whose machines differ, the command also shows and edits the run times of jobs on each resource.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gridweave.cli.grid_client import Reach, at_grid, plain
from gridweave.cli.options import named_as_typed
from gridweave.cli.output import print_json, print_table, say
from gridweave.errors import InputError, OptionError, not_installed
from gridweave.site.times import parse_time_ms, span_text
from gridweave.values import parse_bytes

if TYPE_CHECKING:
    from gridweave.grid.api import LearntSplit
    from gridweave.grid.client.client import Client
    from gridweave.site.journal.experience import Learnt
    from gridweave.site.journal.records import Quantiles
    from gridweave.site.journal.suggest import Rule, Trial
    from gridweave.site.known_times import KnownTimes, SiteExperience, TimesKey
    from gridweave.site.needs.estimates import NeedsExperience

Journals = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOURNAL...]",
        help="Journals of sites: paths or URLs (postgresql://USER@HOST/DATABASE); or one FILE.toml of experience.",
    ),
]
User = Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this user.")]
JobClass = Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this class.")]
Last = Annotated[int, typer.Option(metavar="N", help="Only the N newest jobs of each user and class.")]
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
Site = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Show what this site has learned (only for sites whose machines differ)."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="WHOSE=MEAN[,DEVIATION[,RUNS]]",
        help="Set a known run time, in FILE.toml or at --site. WHOSE is CLASS@RESOURCE, CLASS (work at speed 1, on any "
        "resource) or user:NAME. Repeatable.",
    ),
]
Forgets = Annotated[
    list[str] | None, typer.Option("--forget", metavar="WHOSE", help="Forget the run times of WHOSE. Repeatable.")
]
Splits = Annotated[
    bool,
    typer.Option(
        "--splits", help="Show what splitting jobs really cost on the live grid, compared with the expected cost."
    ),
]
NeedsOption = Annotated[
    bool,
    typer.Option("--needs", help="Show the CPU, network and disk use that the live grid has learned for shared nodes."),
]
Out = Annotated[str | None, typer.Option(metavar="FILE", help="Write the run times shown to this file.")]

_NONE = "-"
_MOST_NAMES = 8
_USER = "user:"
_SET, _FORGET = "--set", "--forget"


class _Edit(NamedTuple):
    """The options that edit known run times, select the times to show, and name the file to write."""

    sets: Sequence[str]
    forgets: Sequence[str]
    user: str | None
    job_class: str | None
    out: str | None

    @property
    def changes_or_writes(self) -> bool:
        """Whether an option is given that does not work with journals."""
        return bool(self.sets or self.forgets or self.out)

    def changes(self, times: Sequence[KnownTimes]) -> list[KnownTimes]:
        """Return the edited times; times to forget have 0 runs.

        Raise OptionError if an option is invalid, or if two options name the same times.
        """
        by_key = {entry.key: entry for entry in times}
        edited = [_set(text, by_key) for text in self.sets]
        for text in self.forgets:
            entry = _whose(_FORGET, text)
            if entry.key not in by_key:
                raise OptionError(_FORGET, f"{text!r} is not known; {_some(times)}")
            edited.append(entry)
        if len({entry.key for entry in edited}) < len(edited):
            raise OptionError("--set, --forget", "name the same times twice")
        return edited

    def select(self, times: Sequence[KnownTimes]) -> list[KnownTimes]:
        """Return the times of the selected user and job class."""
        from gridweave.site.known_times import name_text

        return [
            entry
            for entry in times
            if (self.user is None or name_text(entry.user) == self.user)
            and (self.job_class is None or name_text(entry.job_class) == self.job_class)
        ]


@at_grid
def experience(
    reach: Reach,
    journals: Journals = None,
    user: User = None,
    job_class: JobClass = None,
    last: Last = 10_000,
    kill_chance: KillChance = 0.05,
    margin: Margin = 0.1,
    disk_bandwidth: DiskBandwidth = None,
    node_memory: NodeMemory = None,
    site: Site = None,
    sets: Sets = None,
    forgets: Forgets = None,
    out: Out = None,
    splits: Splits = False,
    needs: NeedsOption = False,
) -> None:
    """Show what the jobs of each user and class have used, and what to request for the next one.

    For sites whose machines differ, show or edit the known run times of each job class on each resource: from a file,
    written by a simulation or named in GRID.toml, or as a site has learned them.

    Example: gridweave experience north.journal --user anna --disk-bandwidth '200 MB/s' --node-memory '64 GB'

    Example: gridweave experience --site north --set 'cfd@west x 8=10m,30s' --forget user:bert

    Example: gridweave experience --splits
    """
    if splits or needs:
        is_alone = not (journals or site or sets or forgets or out or (splits and needs))
        _show_of_grid(reach, user, job_class, "--splits" if splits else "--needs", is_alone=is_alone)
        return
    edit = _Edit(sets or [], forgets or [], user, job_class, out)
    files = [place for place in journals or () if place.endswith(".toml")]
    if len(files) + (site is not None) > 1 or ((files or site) and len(files) != len(journals or ())):
        raise InputError("give only one of these: journals, one FILE.toml, or --site")
    if site is not None:
        _show_site(reach, site, edit)
    elif files:
        _show_file(reach, files[0], edit)
    elif edit.changes_or_writes:
        raise OptionError("--set, --forget, --out", "are for a FILE.toml or --site NAME; journals are not changed")
    elif not journals:
        raise InputError("give a JOURNAL, a FILE.toml with tables of experience, or --site NAME")
    else:
        disk_bps = None if disk_bandwidth is None else parse_bytes("--disk-bandwidth", disk_bandwidth, per_second=True)
        memory_bytes = None if node_memory is None else parse_bytes("--node-memory", node_memory)
        options = {"disk_bps": disk_bps, "node_memory_bytes": memory_bytes}
        learn, rule = _library(kill_chance=kill_chance, margin=margin, **options)
        with named_as_typed(journals="JOURNAL", journal="JOURNAL"):
            _show(learn(journals, rule, user=user, job_class=job_class, last=last), reach.as_json)


def _show_of_grid(reach: Reach, user: str | None, job_class: str | None, option: str, *, is_alone: bool) -> None:
    """Show what the live grid has learned, for `option`: ``--splits`` or ``--needs``."""
    if not is_alone:
        raise OptionError(option, "works only with --user, --job-class and --json")

    def of_these(kinds: Sequence[Any]) -> list[Any]:
        return [kind for kind in kinds if user in (None, kind.user) and job_class in (None, kind.job_class)]

    if option == "--splits":
        reach.show(of_these(reach.ask(lambda grid: grid.learnt_splits())), _print_splits)
    else:
        reach.show(of_these(reach.ask(lambda grid: grid.learnt_needs())), _print_needs)


def _print_splits(splits: Sequence[LearntSplit]) -> None:
    if not splits:
        say("no split job without traffic options has finished yet")
        return
    rows = [
        (
            split.user or _NONE,
            split.job_class or _NONE,
            f"{split.nodes:,}",
            f"{split.whole_runs:,}",
            f"{split.split_runs:,}",
            _NONE if split.factor is None else f"{split.factor:.2f}",
            f"{split.modelled:.2f}",
            "yes" if split.used else "no",
        )
        for split in splits
    ]
    headings = ("user", "class", "nodes", "on one site", "split", "factor", "expected", "used")
    print_table(rows, headings=headings, left=2)


def _print_needs(kinds: Sequence[NeedsExperience]) -> None:
    from gridweave.site.needs.estimates import LEAST_RUNS

    if not kinds:
        say("no job with a job class has finished on unshared nodes yet")
        return
    rows = [
        (
            kind.user or _NONE,
            kind.job_class,
            f"{kind.runs:,}",
            *(f"{part:.3f}" for part in (kind.needs.cpu, kind.needs.network, kind.needs.disk)),
            "yes" if kind.runs >= LEAST_RUNS else f"after {LEAST_RUNS} runs",
        )
        for kind in kinds
    ]
    print_table(rows, headings=("user", "class", "runs", "cpu", "network", "disk", "used"), left=2)


def _show(groups: Sequence[Learnt], as_json: bool) -> None:
    if as_json:
        print_json([_as_plain(group) for group in groups])
    elif not groups:
        say("no job has ended yet")
    else:
        _print(groups)


def _library(**options: float | None) -> tuple[Callable[..., list[Learnt]], Rule]:
    """Return the function `learn` and a `Rule` with these options; UnavailableError if their package is missing."""
    try:
        from gridweave.site.journal.experience import learn
        from gridweave.site.journal.suggest import Rule
    except ImportError as error:
        raise not_installed(error.name) from None
    with named_as_typed(disk_bps="--disk-bandwidth", node_memory_bytes="--node-memory"):
        return learn, Rule(**options)  # type: ignore[arg-type]


def _as_plain(group: Learnt) -> dict[str, Any]:
    names = {"user": group.user, "job_class": group.job_class}
    return {**names, **plain(group.experience), "suggestion": plain(group.suggestion)}


def _print(groups: Sequence[Learnt]) -> None:
    used = ("user", "class", "jobs", "run time 10%", "50%", "90%", "99%", "of estimate 50%", "90%", "CPU", "memory 90%")
    print_table(
        [(*_names(group), *_used(group)) for group in groups],
        headings=(*used, "read 50%", "written 50%"),
        title="What jobs have used",
        left=2,
    )
    suggested = ("user", "class", "estimate", "killed", "used of it", "of asked", "killed", "used of it")
    rows = [(*_names(group), *_suggested(group)) for group in groups]
    if any(cell != _NONE for row in rows for cell in row[2:]):
        headings = (*suggested, "cpu", "network", "disk", "memory")
        print_table(rows, headings=headings, title="Suggested for the next job", left=2)
    for line in _reasons(groups):
        say(line)


def _names(group: Learnt) -> tuple[str, str]:
    return (group.user or _NONE, group.job_class or _NONE)


def _used(group: Learnt) -> tuple[str, ...]:
    observed = group.experience
    run, part = observed.run_ms, observed.part_of_estimate
    return (
        f"{observed.count:,}",
        *(_NONE if run is None else span_text(value) for value in (_at(run, "p10", "p50", "p90", "p99"))),
        *(_NONE if part is None else f"{value:.0%}" for value in _at(part, "p50", "p90")),
        _NONE if observed.cpu is None else f"{observed.cpu.mean:.0%}",
        *(_bytes(value) for value in _at(observed.memory_bytes, "p90")),
        *(_bytes(value) for value in (*_at(observed.read_bytes, "p50"), *_at(observed.write_bytes, "p50"))),
    )


def _at(spread: Quantiles | None, *quantiles: str) -> list[float]:
    return [-1.0 if spread is None else getattr(spread, name) for name in quantiles]


def _suggested(group: Learnt) -> tuple[str, ...]:
    advice = group.suggestion
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


def _reasons(groups: Sequence[Learnt]) -> list[str]:
    """Return why suggestions are incomplete: one line per reason, with the users and classes it applies to."""
    whose: dict[str, list[str]] = {}
    for group in groups:
        for reason in group.suggestion.reasons:
            whose.setdefault(reason, []).append("/".join(_names(group)))
    lines = []
    for reason, names in whose.items():
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        lines.append(reason if len(names) == len(groups) else f"{', '.join(names[:_MOST_NAMES])}{more}: {reason}")
    return lines


def _bytes(value: float) -> str:
    if value < 0:
        return _NONE
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} PB"


def _show_site(reach: Reach, site: str, edit: _Edit) -> None:
    """Edit the run times that a site of the grid has learned, and show them."""
    for text in edit.sets:  # invalid options are reported before a grid is contacted
        _set(text, {})
    for text in edit.forgets:
        _whose(_FORGET, text)

    from gridweave.site.known_times import EXPERIENCE, ExperienceChanges, SiteExperience

    async def work(grid: Client) -> SiteExperience:
        site_experience = await grid.ask_discipline(site, EXPERIENCE, SiteExperience)
        changes = edit.changes(site_experience.times) if site_experience.learns else []
        if not changes:
            return site_experience
        return await grid.ask_discipline(site, EXPERIENCE, SiteExperience, ExperienceChanges(times=changes))

    learned = reach.ask(work)
    if not learned.learns:
        raise InputError(f"site {site} does not learn run times; only sites whose machines differ do")
    _show_times(reach, learned.times, edit, edit.out)


def _show_file(reach: Reach, file: str, edit: _Edit) -> None:
    """Show the run times in a file; rewrite the file if they are edited and --out is not given."""
    from gridweave.grid.config.known_times import read_known_times
    from gridweave.site.known_times import in_order

    times, others = read_known_times(Path(file))
    changes = edit.changes(times)
    if changes and others and edit.out is None:
        raise InputError(f"{file} also has {', '.join(others)}; edit it by hand, or write to another file with --out")
    by_key = {entry.key: entry for entry in (*times, *changes)}
    times = in_order(entry for entry in by_key.values() if entry.runs)
    _show_times(reach, times, edit, edit.out or (file if changes else None))


def _show_times(reach: Reach, times: Sequence[KnownTimes], edit: _Edit, out: str | None) -> None:
    from gridweave.site.known_times import experience_text

    shown = edit.select(times)
    if out is not None:
        # An edited file keeps the times that are not shown.
        written = shown if out == edit.out else times
        Path(out).write_text(experience_text(written), encoding="utf-8")
    reach.show(list(shown), lambda _: _print_times(shown))


def _print_times(times: Sequence[KnownTimes]) -> None:
    if not times:
        say("no run times are known yet")
        return
    rows = [
        (
            "-" if entry.job_class is None else str(entry.job_class),
            "-" if entry.user is None else str(entry.user),
            entry.resource or "any, at speed 1",
            f"{entry.runs:,}",
            span_text(entry.mean_ms),
            span_text(entry.deviation_ms),
        )
        for entry in times
    ]
    headings = ("class", "user", "on", "runs", "mean", "standard deviation")
    print_table(rows, headings=headings, title="How long jobs take", left=3)


def _set(text: str, times_by_key: dict[TimesKey, KnownTimes]) -> KnownTimes:
    """Parse ``WHOSE=MEAN[,DEVIATION[,RUNS]]``; omitted numbers come from `times_by_key`, else 0 and 1."""
    import msgspec

    whose, is_there, numbers = text.rpartition("=")
    mean, *rest = numbers.split(",")
    if not is_there or len(rest) > 2 or not all((mean, *rest)):
        raise OptionError(
            _SET, f"{text!r} is not a run time; write CLASS@RESOURCE=MEAN or CLASS@RESOURCE=MEAN,DEVIATION,RUNS"
        )
    entry = _whose(_SET, whose)
    before = times_by_key.get(entry.key, msgspec.structs.replace(entry, runs=1))
    runs = rest[1].strip() if len(rest) == 2 else str(before.runs)
    if not (runs.isascii() and runs.isdecimal() and len(runs) <= 15):
        raise OptionError(_SET, f"{text!r}: {runs!r} is not a number of runs")
    times = msgspec.structs.replace(
        before,
        mean_ms=float(parse_time_ms(_SET, mean)),
        deviation_ms=float(parse_time_ms(_SET, rest[0])) if rest else before.deviation_ms,
        runs=int(runs),
    )
    if problem := times.problem():
        raise OptionError(_SET, f"{text!r}: {problem}")
    return times


def _whose(option: str, text: str) -> KnownTimes:
    """Parse ``CLASS@RESOURCE``, ``CLASS`` or ``user:NAME``; return times with this key and 0 runs."""
    from gridweave.site.known_times import KnownTimes

    text = text.strip()
    name, _, resource = (part.strip() for part in text.removeprefix(_USER).partition("@"))
    if not name or (text.startswith(_USER) and resource):
        raise OptionError(option, f"{text!r} names no run time; write CLASS@RESOURCE, CLASS or user:NAME")
    value = int(name) if name.isdecimal() else name
    if text.startswith(_USER):
        return KnownTimes(user=value, runs=0, mean_ms=0)
    return KnownTimes(job_class=value, resource=resource, runs=0, mean_ms=0)


def _some(times: Sequence[KnownTimes]) -> str:
    """Return which times are known, as the user would type them; at most `_MOST_NAMES` are listed."""
    names = [f"{_USER}{entry.user}" if entry.job_class is None else _typed(entry) for entry in times]
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return f"there are {', '.join(names[:_MOST_NAMES])}{more}" if names else "nothing is"


def _typed(entry: KnownTimes) -> str:
    return f"{entry.job_class}@{entry.resource}" if entry.resource else f"{entry.job_class}"
