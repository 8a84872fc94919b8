"""The history of a job tells each fact once, whether the grid, a site or both have noted it."""

from __future__ import annotations

from gridweave.grid.service.history import joined_history
from gridweave.site.journal.records import Note


def notes(*entries: tuple[int, str, str]) -> list[Note]:
    return [Note(1, *entry) for entry in entries]


def kinds_and_details(of_grid: list[Note], of_sites: list[Note]) -> list[tuple[str, str]]:
    return [(note.kind, note.detail) for note in joined_history(of_grid, of_sites)]


def test_a_requeued_job_ends_once_for_each_attempt() -> None:
    of_grid = notes(
        (1, "runs", "1 node at north"),
        (4, "left", "north: lost"),
        (5, "retried", "attempt 2"),
        (6, "runs", "1 node at north"),
        (9, "left", "north: finished"),
        (9, "ended", "finished"),
    )
    of_north = notes((3, "ended", "at north: lost: requeued on request"), (8, "ended", "at north: finished"))
    assert kinds_and_details(of_grid, of_north) == [
        ("runs", "1 node at north"),
        ("ended", "at north: lost: requeued on request"),
        ("retried", "attempt 2"),
        ("runs", "1 node at north"),
        ("ended", "finished"),
    ]


def test_each_part_of_a_split_job_has_its_own_end() -> None:
    of_grid = notes((5, "left", "north: finished"), (7, "left", "south: finished"), (7, "ended", "finished"))
    of_sites = notes((4, "ended", "at north: finished"), (6, "ended", "at south: finished"))
    assert kinds_and_details(of_grid, of_sites) == [
        ("ended", "at north: finished"),
        ("ended", "at south: finished"),
        ("ended", "finished"),
    ]


def test_the_grid_speaks_for_a_silent_site() -> None:
    of_grid = notes((5, "left", "north: limit"), (5, "ended", "limit: reached its limit"))
    assert kinds_and_details(of_grid, []) == [("left", "north: limit"), ("ended", "limit: reached its limit")]
