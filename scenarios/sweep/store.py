"""The runs that are finished, one small file each: a sweep that was interrupted goes on from them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError
from gridweave.scenarios.sweep.plan import Plan, PlannedRun
from gridweave.scenarios.sweep.work import METRICS, Outcome, Values

FOLDER = "runs"
"""Of the files, below that of the sweep."""

_FORMAT = 1


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: what was run, for people, and what came out."""

    format: int
    key: str
    scenario: str
    settings: dict[str, Any]
    seed: int
    seconds: float
    metrics: Values


class Store:
    """Finished runs in a folder.

    Parameters
    ----------
    folder : pathlib.Path
        Of the sweep; made when the first run is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def find(self, run: PlannedRun) -> Values | None:
        """Return the metrics of a run, if it is finished.

        Parameters
        ----------
        run : PlannedRun

        Returns
        -------
        dict or None
            None also if its file is damaged, or of another format: it is then run again.
        """
        try:
            record = msgspec.json.decode((self.folder / f"{run.key}.json").read_bytes(), type=_Record)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        whole = (record.format, record.key, set(record.metrics)) == (_FORMAT, run.key, set(METRICS))
        return {name: record.metrics[name] for name in METRICS} if whole else None

    def keep(self, plan: Plan, run: PlannedRun, outcome: Outcome) -> None:
        """Write down a finished run: whole, or not at all.

        Parameters
        ----------
        plan : Plan
        run : PlannedRun
        outcome : Outcome
            With metrics.

        Raises
        ------
        InputError
            If the folder cannot be written to.
        """
        assert outcome.metrics is not None, "only what is finished is kept"
        settings = plan.settings(run.combination)
        record = _Record(_FORMAT, run.key, plan.name, settings, run.seed, round(outcome.seconds, 3), outcome.metrics)
        text = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
        path = self.folder / f"{run.key}.json"
        scratch = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(prefix=".", suffix=".part", dir=self.folder)
            with os.fdopen(handle, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        except BaseException as error:
            if scratch is not None:
                with contextlib.suppress(OSError):
                    os.unlink(scratch)
            if isinstance(error, OSError):
                raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
            raise
