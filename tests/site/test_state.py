"""The state of a core as plain typed data: arrays by name, generators, plugs, versions, and what is refused."""

from __future__ import annotations

import zlib
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from numpy.random import MT19937, PCG64, Generator

from gridweave.errors import InputError
from gridweave.site.state import (
    Arrays,
    CoreState,
    GeneratorState,
    arrays_state,
    dump_state,
    generator_state,
    kind_of,
    read_state,
    restore_generator,
    restored_arrays,
    with_parts,
)

JOB = np.dtype([("width", np.int64), ("place", np.float64, 2)], align=True)


class Room(NamedTuple):
    """Arrays within arrays."""

    steps: npt.NDArray[np.int32]


class Table(NamedTuple):
    """Arrays of a core, and what is none."""

    jobs: npt.NDArray[np.void]
    queue: npt.NDArray[np.int64]
    room: Room
    most: float = 2.5
    plan: Room | None = None


def table(slots: int) -> Table:
    """Return empty arrays."""
    return Table(np.zeros(slots, JOB), np.full(slots, -1), Room(np.zeros((2, slots), np.int32)))


class PlugState(CoreState, frozen=True, kw_only=True, tag="Plug 1"):
    """What a plug knows."""

    known: dict[int, str]


class Plug:
    """A part of a core that may be another."""

    state_type = PlugState

    def __init__(self, known: dict[int, str]) -> None:
        self.known: Any = known

    def state(self) -> PlugState:
        """Return what it knows."""
        return PlugState(known=self.known)

    def restore(self, state: PlugState) -> None:
        """Take in what another knew."""
        self.known = state.known


P = TypeVar("P")


class FirstState(CoreState, Generic[P], frozen=True, kw_only=True, tag="Core 1"):
    """What a core knows."""

    arrays: Arrays
    draws: GeneratorState
    plug: P


class Core:
    """A core with arrays, chance and a plug."""

    def __init__(self) -> None:
        self.arrays = table(3)
        self.rng = Generator(PCG64(7))
        self.plug = Plug({})

    @property
    def state_type(self) -> Any:
        """What it knows, with what its part knows."""
        return with_parts(FirstState, self.plug)

    def state(self) -> FirstState[PlugState]:
        """Return what it knows."""
        arrays, draws = arrays_state(self.arrays), generator_state(self.rng)
        return FirstState(arrays=arrays, draws=draws, plug=self.plug.state())

    def restore(self, state: FirstState[PlugState]) -> None:
        """Take in what another knew."""
        self.arrays = restored_arrays(self.arrays, state.arrays)
        restore_generator(self.rng, state.draws)
        self.plug.restore(state.plug)


def lived() -> Core:
    """Return a core that has grown, and drawn an odd number of halves."""
    core = Core()
    core.arrays = table(5)
    core.arrays.jobs["width"], core.arrays.jobs["place"][2] = np.arange(5), (0.5, np.inf)
    core.arrays.queue[1], core.arrays.room.steps[1, 4] = 2**62, 7
    core.rng.integers(10, size=3, dtype=np.uint32)
    core.plug.known = {3: "c", 1: "a"}
    return core


def test_a_core_goes_on_where_it_stood() -> None:
    """A fresh core that takes in a state has the arrays, sizes, draws and parts of the one whose state it was."""
    core, again = lived(), Core()
    again.restore(read_state(again, dump_state(core)))
    for mine, other in ((core.arrays.jobs, again.arrays.jobs), (core.arrays.queue, again.arrays.queue)):
        assert mine.dtype == other.dtype
        assert (mine == other).all()
    assert (core.arrays.room.steps == again.arrays.room.steps).all()
    assert (again.arrays.most, again.arrays.plan) == (2.5, None)
    assert list(again.plug.known.items()) == [(3, "c"), (1, "a")]
    assert (
        core.rng.integers(10, size=9, dtype=np.uint32).tolist()
        == again.rng.integers(10, size=9, dtype=np.uint32).tolist()
    )
    again.arrays.queue[0] = 1
    assert dump_state(again) != dump_state(core)


def test_arrays_go_by_the_names_of_their_columns() -> None:
    """A column that was not kept is that of the fresh core, whatever their order; one that is not known is refused."""
    kept = arrays_state(lived().arrays)
    del kept["jobs.place"], kept["room.steps"]
    found = restored_arrays(table(5), dict(reversed(kept.items())))
    assert found.jobs["width"].tolist() == [0, 1, 2, 3, 4]
    assert not found.jobs["place"].any()
    assert not found.room.steps.any()
    with pytest.raises(InputError, match=r"unknown arrays: jobs\.depth, more"):
        restored_arrays(table(5), kept | {"more": kept["queue"], "jobs.depth": kept["queue"]})


@pytest.mark.parametrize(
    "change",
    [{"dtype": "<f8"}, {"dtype": "nonsense"}, {"data": b"1"}, {"shape": (4,)}, {"dtype": "|O"}],
    ids=lambda change: next(iter(change)),
)
def test_an_array_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    """Numbers of another kind, too few of them, and objects are an error in one line."""
    kept = arrays_state(table(3))
    kept["queue"] = msgspec.structs.replace(kept["queue"], **change)
    with pytest.raises(InputError, match="an array does not fit"):
        restored_arrays(table(3), kept)


def test_a_generator_of_another_kind_is_refused() -> None:
    """A state is that of one kind of generator."""
    with pytest.raises(InputError, match="another kind of random number generator"):
        restore_generator(Generator(MT19937(1)), generator_state(Generator(PCG64(1))))


def test_a_later_version_reads_an_older_state() -> None:
    """A release that reads two versions of a state tells them apart; one that knows only the first says so."""

    class PlugState2(CoreState, frozen=True, kw_only=True, tag="Plug 2"):
        names: dict[int, str]

    class LaterPlug(Plug):
        state_type: Any = PlugState | PlugState2

        def state(self) -> Any:
            return PlugState2(names=self.known)

        def restore(self, state: Any) -> None:
            self.known = state.names if isinstance(state, PlugState2) else state.known

    class Later(Core):
        def __init__(self) -> None:
            super().__init__()
            self.plug = LaterPlug({5: "e"})

    later, again = Later(), Later()
    assert (kind_of(Core()), kind_of(Plug({})), kind_of(later.plug)) == ("Core 1", "Plug 1", "Plug 2")
    again.restore(read_state(again, dump_state(later)))
    assert again.plug.known == {5: "e"}
    again.restore(read_state(again, dump_state(lived())))
    assert again.plug.known == {3: "c", 1: "a"}
    with pytest.raises(
        InputError, match=r"not the state of a Core of this release: Invalid value 'Plug 2' - at `\$\.plug"
    ):
        read_state(Core(), dump_state(later))


def test_what_is_no_state_is_refused() -> None:
    """Other bytes, those of another core, and a field that is not known are errors in one line, and call nothing."""
    for data, problem in (
        (b"cos\nsystem\n(S'true'\ntR.", "it is damaged"),
        (dump_state(lived())[:40], "it is damaged"),
        (zlib.compress(b"\x93"), "not the state of a Core of this release"),
        (dump_state(Plug({})), "not the state of a Core of this release: Invalid value 'Plug 1'"),
        (zlib.compress(msgspec.msgpack.encode({"state": "Core 1", "more": 1})), "unknown field `more`"),
    ):
        with pytest.raises(InputError, match=problem):
            read_state(Core(), data)
    for odd in (object(), {1: print}, {2**70: ""}):
        with pytest.raises(InputError, match="the state of a Plug cannot be encoded"):
            dump_state(Plug(odd))  # type: ignore[arg-type]
