"""Options as people write them: time spans, limits, lists of names, and what is said of those that are none."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gridweave.cli.options import named_as_typed, parse_limit, policies, split_names
from gridweave.errors import OptionError
from gridweave.scenarios.workload.table import MAX_TIME_MS
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.policy import DAY_MS, DAYS, Limit, SitePolicy, Window
from gridweave.site.times import parse_time_ms

HOUR_MS = 3_600_000
GIVEN: dict[str, Any] = {
    "discipline": "queue",
    "orders": "fcfs",
    "backfills": "easy",
    "choices": "first-fit",
    "slack": 0.5,
    "aging": "none",
    "limits": [],
    "own": [],
    "nodes": 100,
}


def chosen(**options: Any) -> list[SitePolicy]:
    """Return the policies that options name; those that are left out are as the command has them."""
    return policies(**(GIVEN | options))


def refused(**options: Any) -> OptionError:
    """Return the error that options end in."""
    with pytest.raises(OptionError) as caught:
        chosen(**options)
    return caught.value


# -- names


def test_names_are_split_at_commas() -> None:
    """Names may have blanks around them and capitals, and count once."""
    assert split_names("--order", " FCFS, sjf,,fcfs ,ljf") == ["fcfs", "sjf", "ljf"]


@pytest.mark.parametrize("text", ["", ",", " , ,", "\t"])
@pytest.mark.parametrize("option", ["orders", "backfills", "choices"])
def test_a_list_without_names_is_refused(option: str, text: str) -> None:
    """A list that holds no name is refused under the name of its own option, and never means a default."""
    error = refused(**{option: text})
    assert error.option == f"--{option.removesuffix('s')}"
    assert "contains no name" in error.problem


# -- times


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("90", 90_000),
        ("0", 0),
        ("1.5", 1500),
        ("250ms", 250),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("1h30", 3_630_000),
        ("2d", 2 * DAY_MS),
        ("1w", 7 * DAY_MS),
        (" 2H ", 2 * HOUR_MS),
        ("1d2h3m4s5ms", DAY_MS + 2 * HOUR_MS + 184_005),
        ("10:00", 600_000),
        ("1:30:05", HOUR_MS + 1_805_000),
        ("2-0", 2 * DAY_MS),
        ("1-12:30", DAY_MS + 12 * HOUR_MS + 1_800_000),
        ("2-00:00:00", 2 * DAY_MS),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    """A time is a number with a unit, several of them, or a bare number of seconds."""
    assert parse_time_ms("--aging", text) == time_ms


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "h", "-5", "+5", "1 h", "1h 30m", "1hh", "1y", "5m-", "1..5h", ".5h", "5.", "1e3", "nan", "inf",
     "2-", "-1:00", "1:", ":30", "1:2:3:4", "1-2:3:4:5", "1-2d", "1:30m", "30 1h", "1,5h", "٣h", "0x10"],
)  # fmt: skip
def test_no_times(text: str) -> None:
    """What is no time is refused, with what would be one."""
    with pytest.raises(OptionError, match=r"--aging: .* is not a time; expected 90") as caught:
        parse_time_ms("--aging", text)
    assert repr(text.strip().lower()) in str(caught.value)


@pytest.mark.parametrize("text", [f"{MAX_TIME_MS + 1}ms", "99999999w", "9" * 400, "9" * 400 + "-0", "1:" + "9" * 400])
def test_times_beyond_all_workloads(text: str) -> None:
    """A time that no workload may hold is refused, however long its number."""
    with pytest.raises(OptionError, match=r"--aging: .* is too long"):
        parse_time_ms("--aging", text)
    assert parse_time_ms("--aging", f"{MAX_TIME_MS}ms") == MAX_TIME_MS


@given(st.integers(0, MAX_TIME_MS))
def test_any_number_of_ms_can_be_written(time_ms: int) -> None:
    """Every whole number of milliseconds up to the longest time is read back as it is."""
    assert parse_time_ms("--aging", f"{time_ms}ms") == time_ms


def test_a_bare_number_may_be_minutes() -> None:
    """Where a batch system counts in minutes, a number without a unit is minutes, and no other time changes."""
    assert parse_time_ms("time", "90", bare="m") == 5_400_000
    assert parse_time_ms("time", "90:00", bare="m") == parse_time_ms("time", "90m", bare="m") == 5_400_000


@given(st.text(max_size=12))
@example("0" * 400)
def test_a_time_is_read_or_refused(text: str) -> None:
    """Whatever the text, there is a time from 0 up or an error of the project."""
    with contextlib.suppress(OptionError):
        assert 0 <= parse_time_ms("--aging", text) <= MAX_TIME_MS


# -- limits


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (
            "wider-than=75%,days=mon-fri,from=8:00,to=18:00",
            Limit(wider_than=75, window=Window(days=(0, 1, 2, 3, 4), from_ms=8 * HOUR_MS, to_ms=18 * HOUR_MS)),
        ),
        ("wider-than=33%,max-jobs=2", Limit(wider_than=33, max_jobs=2)),
        ("max-nodes=50%", Limit(max_nodes=50)),
        ("max-nodes=64", Limit(max_nodes=64)),
        ("longer-than=2h,user=7,max-jobs=1", Limit(longer_than_ms=2 * HOUR_MS, user=7, max_jobs=1)),
        (" Wider-Than = 10 , MAX-JOBS = 3 ", Limit(wider_than=10, max_jobs=3)),
        ("days=sat+sun", Limit(window=Window(days=(5, 6)))),
        ("days=Fri-Mon", Limit(window=Window(days=(0, 4, 5, 6)))),
        ("days=mon+wed-thu+wed", Limit(window=Window(days=(0, 2, 3)))),
        ("days=sun-sat", Limit(window=Window())),
        ("from=22:30,to=6:00", Limit(window=Window(from_ms=22 * HOUR_MS + HOUR_MS // 2, to_ms=6 * HOUR_MS))),
        ("from=22:00", Limit(window=Window(from_ms=22 * HOUR_MS))),
        ("from=0:00,to=24:00", Limit(window=Window())),
        ("from=20:00,to=0:00", Limit(window=Window(from_ms=20 * HOUR_MS))),
    ],
)
def test_limits(text: str, limit: Limit) -> None:
    """A limit is read as it is meant, on a site of 100 nodes."""
    assert parse_limit(text, 100) == limit


@pytest.mark.parametrize(
    ("text", "nodes", "wider_than"),
    [("33.3%", 1000, 333), ("57%", 100, 57), ("75%", 430, 322), ("0.1%", 512, 0), ("100%", 7, 7), ("0%", 7, 0)],
)
def test_parts_of_the_nodes_are_exact(text: str, nodes: int, wider_than: int) -> None:
    """A percentage is the whole nodes in it, without the errors of binary fractions."""
    assert parse_limit(f"wider-than={text},max-jobs=1", nodes).wider_than == wider_than


@pytest.mark.parametrize(
    ("text", "option", "problem"),
    [
        ("", "--limit", "not key=value"),
        ("wider-than", "--limit", "'wider-than' is not key=value with a key of wider-than, longer-than, user"),
        ("=1", "--limit", "not key=value"),
        ("colour=red,max-jobs=1", "--limit", "'colour=red' is not key=value"),
        ("max-jobs=1,", "--limit", "'' is not key=value"),
        ("days=mon,tue", "--limit", "'tue' is not key=value"),
        ("wider-than=75%", "--limit", "limits nothing"),
        ("user=3,longer-than=2h", "--limit", "limits nothing"),
        ("max-jobs=1,max-nodes=1", "--limit", "more than one thing"),
        ("max-jobs=1,days=mon", "--limit", "more than one thing"),
        ("max-jobs=1,max-jobs=2", "--limit", "max-jobs appears twice"),
        ("max-jobs=0", "--limit max-jobs", "less than 1"),
        ("max-jobs=-1", "--limit max-jobs", "'-1' is not a whole number"),
        ("max-jobs=2.5", "--limit max-jobs", "not a whole number"),
        ("max-jobs=50%", "--limit max-jobs", "not a whole number"),
        ("max-jobs=" + "9" * 5000, "--limit max-jobs", "not a whole number of at most 15 digits"),
        ("max-nodes=0", "--limit max-nodes", "less than 1"),
        ("max-nodes=0.9%", "--limit max-nodes", "'0.9%' is less than 1"),
        ("max-nodes=", "--limit max-nodes", "'' is not a whole number"),
        ("wider-than=150%,max-jobs=1", "--limit wider-than", "'150%' is not a number of nodes"),
        ("wider-than=-1%,max-jobs=1", "--limit wider-than", "is not a number of nodes"),
        ("wider-than=nan%,max-jobs=1", "--limit wider-than", "is not a number of nodes"),
        ("wider-than=%,max-jobs=1", "--limit wider-than", "is not a number of nodes"),
        ("wider-than=half,max-jobs=1", "--limit wider-than", "'half' is not a whole number"),
        ("longer-than=long,max-jobs=1", "--limit longer-than", "'long' is not a time"),
        ("user=bob,max-jobs=1", "--limit user", "'bob' is not a whole number"),
        ("user=²,max-jobs=1", "--limit user", "not a whole number"),
        ("days=", "--limit days", "'' is not a list of days"),
        ("days=mon-", "--limit days", "'mon-' is not a list of days"),
        ("days=-mon", "--limit days", "not a list of days"),
        ("days=mon-tue-wed", "--limit days", "not a list of days"),
        ("days=monday", "--limit days", "write mon-fri, sat or mon+wed"),
        ("from=8", "--limit from", "'8' is not a time of day"),
        ("from=24:01", "--limit from", "not a time of day"),
        ("from=24:00", "--limit from", "the end of a day; write 0:00"),
        ("to=8:60", "--limit to", "not a time of day"),
        ("to=08:00:00", "--limit to", "not a time of day"),
        ("to=-1:00", "--limit to", "not a time of day"),
    ],
)  # fmt: skip
def test_no_limits(text: str, option: str, problem: str) -> None:
    """What is no limit is refused, with the part of it that is wrong."""
    with pytest.raises(OptionError) as caught:
        parse_limit(text, 100)
    assert caught.value.option == option
    assert problem in caught.value.problem


@given(st.text(alphabet="abdefhijlmnorstuwx-=,:%+ .0129", max_size=40))
@example("max-jobs=1,user=" + "1" * 16)
def test_a_limit_is_read_or_refused(text: str) -> None:
    """Whatever the text, there is a limit that the arrays of a policy have room for, or an error of the project."""
    with contextlib.suppress(OptionError):
        policy = SitePolicy(discipline="planning", limits=(parse_limit(text, 64),))
        assert (policy.profile_totals(64) >= 1).all()


@given(st.sampled_from(DAYS), st.sampled_from(DAYS))
def test_a_range_of_days_goes_on_over_the_weekend(first: str, last: str) -> None:
    """A range holds its first and last day, and as many as lie between them going forward."""
    limit = parse_limit(f"days={first}-{last}", 1)
    assert limit.window is not None
    days = limit.window.days
    assert {DAYS.index(first), DAYS.index(last)} <= set(days)
    assert len(days) == (DAYS.index(last) - DAYS.index(first)) % 7 + 1


# -- policies


def test_every_combination_is_a_policy() -> None:
    """Several orders, backfillings and choices make all their combinations, the last changing fastest."""
    labels = [
        policy.label for policy in chosen(orders="fcfs,sjf", backfills="easy,slack", choices="first-fit,best-fit")
    ]
    assert labels == [
        "fcfs easy",
        "fcfs easy best-fit",
        "fcfs slack",
        "fcfs slack best-fit",
        "sjf easy",
        "sjf easy best-fit",
        "sjf slack",
        "sjf slack best-fit",
    ]


def test_a_planning_site_with_levels_has_limits(tmp_path: Path) -> None:
    levels = tmp_path / "levels.toml"
    levels.write_text('under = "planning"\nlevels = [{ name = "high", priority = 1 }]\n')
    (policy,) = policies(**(GIVEN | {"discipline": "levels", "limits": ["max-jobs=1"], "own": [f"@{levels}"]}))
    assert isinstance(policy, LevelsPolicy)
    assert policy.under == SitePolicy(discipline="planning", limits=(Limit(max_jobs=1),))


def test_options_reach_the_policy() -> None:
    """Discipline, slack, aging and limits are in every policy; limits in per cent are of the nodes given."""
    (policy,) = chosen(orders="priority", backfills="slack", slack=0.25, aging="2h")
    assert (policy.slack, policy.aging_ms) == (0.25, 2 * HOUR_MS)
    assert [chosen(aging=none)[0].aging_ms for none in ("none", " None ")] == [math.inf, math.inf]
    (policy,) = chosen(discipline=" Planning ", limits=["max-nodes=50%", "user=1,max-jobs=1"], nodes=8)
    assert policy == SitePolicy(discipline="planning", limits=(Limit(max_nodes=4), Limit(user=1, max_jobs=1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discipline": "sling"}, "--discipline: 'sling' is not known; one of dynp, fractional, gang"),
        ({"discipline": ""}, "--discipline: '' is not known"),
        ({"orders": "fcfs,lifo"}, "--order: 'lifo' is not known; one of fcfs, sjf"),
        ({"backfills": "hard"}, "--backfill of a queue site: 'hard' is not known; one of easy, none"),
        ({"discipline": "planning", "backfills": "slack"}, "--backfill of a planning site: 'slack' is not known"),
        ({"choices": "worst-fit"}, "--choice: 'worst-fit' is not known"),
        ({"choices": "best-fit", "backfills": "none"}, "--choice: 'best-fit' only works with"),
        ({"slack": math.nan}, "--slack: is nan"),
        ({"slack": -0.1}, "--slack: is -0.1"),
        ({"aging": "0"}, "--aging: '0' is too short"),
        ({"aging": "0.0001s"}, "--aging: '0.0001s' is too short"),
        ({"aging": "soon"}, "--aging: 'soon' is not a time"),
        ({"limits": ["max-jobs=1"]}, "--limit: only work with the discipline planning"),
        ({"discipline": "optimal", "limits": ["max-jobs=1"]}, "--limit: is not for a site with the discipline optimal"),
        ({"discipline": "levels", "limits": ["max-jobs=1"]}, "--limit: only work with the discipline planning"),
        ({"discipline": "planning", "limits": ["max-jobs=1"] * 63}, "--limit: has 63 entries; expected at most 62"),
    ],
    ids=str,
)
def test_refused_as_typed(options: dict[str, Any], message: str) -> None:
    """What no policy can be made of is refused under the name that the user typed."""
    assert str(refused(**options)).startswith(message)


@pytest.mark.parametrize(
    ("raised", "typed"),
    [
        ("nodes", "--nodes"),
        ("estimates", "--estimates"),
        ("phi", "--estimates phi"),
        ("omega", "--estimates omega"),
        ("factor", "--shrink"),
        ("aging_ms", "--aging"),
        ("limits", "--limit"),
        ("--seed", "--seed"),
    ],
)
def test_names_of_the_library_become_those_of_the_command(raised: str, typed: str) -> None:
    """An error about an argument of the library names the option in its place, and says the same."""
    with pytest.raises(OptionError) as caught, named_as_typed():
        raise OptionError(raised, "is wrong")
    assert str(caught.value) == f"{typed}: is wrong"


def test_other_errors_pass() -> None:
    """Errors that are not about an option stay what they are."""
    with pytest.raises(ZeroDivisionError), named_as_typed():
        raise ZeroDivisionError
