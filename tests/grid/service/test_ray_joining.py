"""How a process that has joined Ray hears that it is gone."""

from __future__ import annotations

import itertools
from typing import Any

from gridweave.grid.service.ray import watch_node


def looks(*answers: object) -> int:
    """Return after how many looks at these answers the node "a" was given up; the last answer stays."""
    count = itertools.count(1)
    told = itertools.chain(answers, itertools.repeat(answers[-1]))
    seen = []

    def nodes() -> Any:
        answer = next(told)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch_node("a", nodes, lambda: seen.append("lost"), lambda: next(count))
    assert seen == ["lost"]
    return next(count) - 1


def test_a_node_is_gone_when_it_was_missed_several_times_on_end() -> None:
    """One that is dead, that a new Ray does not know, or of which nobody can tell, is given up; else not."""
    here, dead, other = {"NodeID": "a", "Alive": True}, {"NodeID": "a", "Alive": False}, {"NodeID": "b", "Alive": True}
    assert looks([other, here], [dead]) == 4
    assert looks([here], [other]) == 4
    assert looks([here], ConnectionError("no head")) == 4
    assert looks([here], [other], RuntimeError("busy"), [here], []) == 7
