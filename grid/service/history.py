"""A job's history for readers: the notes of the grid and the sites, without repetitions."""

from __future__ import annotations

from collections.abc import Sequence

from gridweave.site.journal.records import Note


def joined_history(of_grid: Sequence[Note], of_sites: Sequence[Note]) -> list[Note]:
    """Return the notes of the grid and the sites sorted by time, without notes that only repeat another note.

    The grid notes when it learns that a job's part at a site has ended, but the site has noted the same end with the
    reason. If a job has only one part, the job's end repeats the part's end.

    Examples
    --------
    >>> of_grid = [Note(1, 9, "left", "north: limit"), Note(1, 9, "ended", "limit")]
    >>> [note.detail for note in joined_history(of_grid, [Note(1, 8, "ended", "at north: limit")])]
    ['limit']
    """
    ends = [note for note in of_sites if note.kind == "ended"]
    unheard, kept = list(ends), list[Note]()
    for note in of_grid:
        part = f"at {note.detail}:"
        end = next((end for end in unheard if f"{end.detail}:".startswith(part)), None) if note.kind == "left" else None
        if end is None:
            kept.append(note)
        else:
            unheard.remove(end)
    final = [note.detail for note in of_grid if note.kind == "ended"]
    same = [end for end in ends if final and end.detail.partition(": ")[2] == final[-1]]
    kept += [note for note in of_sites if len(same) != 1 or note is not same[0]]
    return sorted(kept, key=lambda note: note.at_ms)
