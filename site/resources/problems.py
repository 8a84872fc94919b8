"""Check kinds of nodes and jobs' requests; report all problems at once (docs/resources.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from gridweave.site.resources.chunks import FIRST_COLUMNS, MAX_AMOUNT, MAX_KINDS, Chunk, NodeKind
from gridweave.site.resources.refusals import why_never_on
from gridweave.site.resources.text import is_name

Problem = tuple[str, str]
"""The name of a field, and what is wrong with it."""

OPTION_OF = {"memory_mb": "memory", "others": "gres", "gpu_type": "gpus"}
"""The options of jobs and keys of files that set a field, if their names differ from the field's name."""

_TAKEN = {*FIRST_COLUMNS, "memory", "gpu"}
_NAME_RULE = "expected letters, digits and . _ + -"


def kind_problems(kinds: Sequence[NodeKind]) -> Iterator[tuple[int, str, str]]:
    """Yield the problems of a site's kinds of nodes, each with the index of the kind and the name of the field."""
    for number, kind in enumerate(kinds[MAX_KINDS:], MAX_KINDS):
        yield number, "name", f"{kind.name!r} is one kind too many; a site has at most {MAX_KINDS}"
    seen: set[str] = set()
    for number, kind in enumerate(kinds):
        if not kind.name:
            yield number, "name", "is missing; jobs can ask for a kind of nodes by its name"
        elif kind.name in seen:
            yield number, "name", f"{kind.name!r} is also the name of another kind; each needs its own"
        seen.add(kind.name)
        yield from ((number, *problem) for problem in _problems_of_kind(kind))


def _problems_of_kind(kind: NodeKind) -> Iterator[Problem]:
    yield from _name_problems("name", [kind.name] if kind.name else [])
    for field, least in (("count", 1), ("cores", 1), ("memory_mb", 1), ("gpus", 0)):
        yield from _amount_problems(field, getattr(kind, field), least)
    yield from _name_problems("gpu_type", [kind.gpu_type] if kind.gpu_type else [])
    yield from _other_problems(kind.others)
    yield from _name_problems("labels", kind.labels)
    if not (kind.speed > 0 and math.isfinite(kind.speed)):
        yield "speed", f"is {kind.speed}; expected a number above 0"


def chunk_problems(chunk: Chunk, width: int) -> Iterator[Problem]:
    """Yield the problems with the chunk of a job that has this number of chunks."""
    for field in ("cores", "memory_mb", "gpus", "per_node"):
        yield from _amount_problems(field, getattr(chunk, field), 0)
    yield from _name_problems("gpu_type", [chunk.gpu_type] if chunk.gpu_type else [])
    yield from _other_problems(chunk.others)
    yield from _name_problems("labels", chunk.labels)
    if chunk.is_whole and (chunk.memory_mb or chunk.gpus or chunk.others or chunk.per_node or not chunk.exclusive):
        yield "cores", "is 0, which asks for whole nodes; expected at least 1 with other resources"
    if chunk.gpu_type and not chunk.gpus:
        yield "gpus", f"asks for 0 {chunk.gpu_type} GPUs; expected at least 1"
    if chunk.per_node > 0 and width % chunk.per_node:
        yield "per_node", f"is {chunk.per_node}; expected a divisor of {width}, the width"


def chunk_problem(chunk: Chunk | msgspec.UnsetType, width: int, *, with_forms: bool = False) -> str | None:
    """Return all problems with the chunk of a job that has this number of chunks, in one line, or None.

    Examples
    --------
    >>> chunk_problem(Chunk(gpus=-1, per_node=3), 8)
    'gpus is -1; expected a whole number from 0 to 1,000,000,000; per_node is 3; expected a divisor of 8, the width'
    """
    if not chunk:
        return None
    problems = [("cores", "is given together with forms; give one of them")] if with_forms else []
    problems += chunk_problems(chunk, width)
    return "; ".join(f"{field} {problem}" for field, problem in problems) or None


def why_on_no_site(kinds: Sequence[Sequence[NodeKind]], chunk: Chunk | msgspec.UnsetType) -> str | None:
    """Return why no node of any site can hold a chunk, given the kinds of each site, or None.

    Also return None if the kinds of any site are unknown.

    Examples
    --------
    >>> north, south = [NodeKind(name="cpu", count=2, cores=16)], [NodeKind(name="gpu", count=1, cores=8, gpus=4)]
    >>> why_on_no_site([north, south], Chunk(cores=32))
    'a chunk needs 32 cores and the largest node that suits has 16'
    >>> why_on_no_site([north, south], Chunk(labels=("fast",)))
    "no node has the label 'fast'; one of cpu, gpu"
    >>> why_on_no_site([north, []], Chunk(cores=32)) is None
    True
    """
    if not chunk or not kinds or not all(kinds):
        return None
    return why_never_on([kind for of_site in kinds for kind in of_site], chunk.per_node or 1, chunk)


def _amount_problems(field: str, amount: int | None, least: int) -> Iterator[Problem]:
    if amount is not None and not least <= amount <= MAX_AMOUNT:
        yield field, f"is {amount}; expected a whole number from {least} to {MAX_AMOUNT:,}"


def _other_problems(others: Sequence[tuple[str, int]]) -> Iterator[Problem]:
    names = [name for name, _ in others]
    yield from _name_problems("others", names)
    for name in sorted(_TAKEN.intersection(names)):
        yield "others", f"{name!r} has an option of its own; expected another name"
    if names != sorted(set(names)):
        yield "others", f"has the names {', '.join(names)}; expected each name once, in ascending order"
    for name, amount in others:
        if not 0 < amount <= MAX_AMOUNT:
            yield "others", f"{name!r} is {amount}; expected a whole number from 1 to {MAX_AMOUNT:,}"


def _name_problems(field: str, names: Sequence[str]) -> Iterator[Problem]:
    for name in names:
        if not is_name(name):
            yield field, f"{name!r} is not a name; {_NAME_RULE}"
