"""Run the command like its script, for tests of exit statuses and output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from gridweave.cli import main
from support.gateway import Elsewhere

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a function that runs the command with arguments and returns status, standard output and standard error."""

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gridweave", *map(str, arguments)])
        monkeypatch.setattr(os, "_exit", leave)
        with pytest.raises(SystemExit) as end:
            main.run()
        printed = capsys.readouterr()
        status = end.value.code or 0
        assert isinstance(status, int)
        return status, printed.out, printed.err

    return call


@pytest.fixture
def here(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Elsewhere:
    """Start a gateway that the command finds by default, and change to an empty folder."""
    monkeypatch.setenv("GRIDWEAVE_URL", elsewhere.url)
    monkeypatch.setenv("LOGNAME", "anna")
    monkeypatch.chdir(tmp_path)
    return elsewhere
