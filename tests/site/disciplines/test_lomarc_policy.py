"""The policy of a site whose nodes are shared, as it is written down."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gridweave.errors import OptionError
from gridweave.settings import settings_changes
from gridweave.site.disciplines.sharing.kernels.pairing import FIRST, MATCHING, U1
from gridweave.site.disciplines.sharing.policy import VARIANTS, SharedNodes, SharingPolicy, kind_array
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.resources.chunks import NodeKind


def test_variants_are_called_as_in_the_paper() -> None:
    """Each variant's label is its name, and no two are alike."""
    assert [policy.label for policy in VARIANTS.values()] == list(VARIANTS)
    assert len(set(VARIANTS.values())) == len(VARIANTS)


def test_a_label_tells_what_is_changed() -> None:
    """What is not as in the paper stands behind the name."""
    policy = SharingPolicy(heuristic="response", max_slowdown=1.5, backfill="conservative")
    assert policy.label == "L-R max_slowdown=1.5 backfill=conservative"
    assert SharingPolicy(heuristic="first", cpu="standard").label == "L-FM standard"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"coscheduling": "some"}, "coscheduling: 'some' is not known; one of none, lomarc, always, adjacent"),
        ({"heuristic": "u3"}, "heuristic: 'u3'"),
        ({"cpu": "fast"}, "cpu: 'fast' is not known; one of hyperthreaded, standard"),
        ({"backfill": "slack"}, "backfill: 'slack'"),
        ({"max_slowdown": 0.99}, r"max_slowdown: is 0\.99"),
        ({"short_up_to_ms": -1}, "short_up_to_ms: is -1"),
        ({"medium_up_to_ms": 59_999}, "medium_up_to_ms: is 59999; expected a number from 60,000"),
        ({"load_threshold": 1.5}, r"load_threshold: is 1\.5"),
        ({"aging_ms": 0}, "aging_ms: is 0"),
        ({"aging_ms": float("nan")}, "aging_ms: is nan"),
        ({"partners": 0}, "partners: is 0"),
    ],
)
def test_a_bad_policy_is_refused(options: dict[str, Any], problem: str) -> None:
    """The error names the option and what it may be."""
    with pytest.raises(OptionError, match=problem):
        SharingPolicy(**options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"count": 0}, "count: is 0"),
        ({"count": 1, "cores": 0}, "cores: is 0"),
        ({"count": 1, "threads": 65}, "threads: is 65"),
        ({"count": 1, "cores": 10, "threads": 10}, "cores x threads: is 100"),
        ({"count": 1, "memory": 0.0}, "memory: is 0"),
        ({"count": 1, "cpu": "slow"}, "cpu: 'slow'"),
        ({"count": 1, "gpus": 2}, "gpus: is not for shared nodes; expected only count, cores, threads, memory, cpu"),
    ],
)
def test_bad_nodes_are_refused(options: dict[str, Any], problem: str) -> None:
    """A node has cores, threads and memory."""
    with pytest.raises(OptionError, match=problem):
        SharedNodes(kinds=(NodeKind(**options),))


def test_what_compiled_code_reads() -> None:
    """The names become codes, T_age its milliseconds, and partners follow the threads of the largest node."""
    codes = SharingPolicy().codes([NodeKind(count=1)])
    assert (codes.coscheduling, codes.heuristic, codes.age_ms, codes.partners) == (MATCHING, U1, 0, 1)
    assert codes.load_part == 0.8
    kinds = [NodeKind(count=1), NodeKind(count=1, cores=2, threads=4)]
    assert SharingPolicy().codes(kinds).partners == 7
    assert SharingPolicy(partners=2).codes(kinds).partners == 2
    assert SharingPolicy(aging_ms=float("inf")).codes(kinds).age_ms == NEVER_MS
    assert VARIANTS["AM"].codes(kinds).heuristic == FIRST
    assert kind_array(kinds)["hyperthreaded"].tolist() == [1, 1]


def test_a_policy_can_be_written_down_and_read() -> None:
    """JSON keeps a policy as it is."""
    policy = SharingPolicy(heuristic="u2", aging_ms=5_000.0)
    assert msgspec.json.decode(msgspec.json.encode(policy), type=SharingPolicy) == policy


def test_nodes_written_before_there_was_one_description_can_be_read() -> None:
    """Kinds that were written with all their fields, and without a name, mean the same nodes."""
    old = b'{"kinds":[{"count":6,"cores":2,"threads":3,"memory":0.6,"cpu":"standard"}],"formula":"printed"}'
    kinds = (NodeKind(count=6, cores=2, threads=3, memory=0.6, cpu="standard"),)
    policy = SharedNodes(kinds=kinds, formula="printed")
    assert msgspec.json.decode(old, type=SharedNodes) == policy
    assert list(settings_changes(msgspec.json.decode(old), policy)) == []


def test_a_number_of_nodes_is_checked_like_a_kind() -> None:
    """A site without kinds has identical nodes, at least one."""
    with pytest.raises(OptionError, match="count: is 0"):
        SharedNodes().kinds_of(0)
