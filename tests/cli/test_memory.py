"""Memory of the command."""

from __future__ import annotations

import ctypes

import pytest

from gridweave.cli.output import give_back_large_arrays


class _Library:
    """A C library that notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def mallopt(self, parameter: int, value: int) -> int:
        """Note a call."""
        self.calls.append((parameter, value))
        return 1


def test_malloc_is_told_once_what_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a megabyte on, arrays are mapped, whatever was let go before: M_MMAP_THRESHOLD is -3."""
    library = _Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    give_back_large_arrays()
    assert library.calls == [(-3, 1 << 20)]


@pytest.mark.parametrize("error", [OSError("no such library"), TypeError("no name")])
def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Where there is no such library, or no such function in it, the command goes on."""

    def refuse(name: object) -> object:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    give_back_large_arrays()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    give_back_large_arrays()
