"""The reference of the command and the examples of the client are those of the code."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gridweave.cli.main import make_app
from gridweave.cli.reference import reference, renewed
from gridweave.site.job import JobRecord
from support.commands import write_metadata
from support.gateway import Elsewhere

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = re.findall(r"```python\n(.*?)```", (DOCS / "client.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """Return the command as it is with gridweave-papers installed."""
    write_metadata(tmp_path, "gridweave-papers")
    monkeypatch.syspath_prepend(tmp_path)
    return make_app()


@pytest.mark.parametrize("name", ["cli.md", "options.md"])
def test_the_reference_is_current(name: str, app: typer.Typer) -> None:
    """`python -m gridweave.cli.reference docs/cli.md docs/options.md` renews the pages."""
    page = (DOCS / name).read_text(encoding="utf-8")
    assert renewed(page, app) == page


def test_help_shows_what_stands_in_brackets(app: typer.Typer) -> None:
    """No help screen has empty brackets, whose words the terminal's markup took for a style."""
    names = re.findall(r"^### gridweave (.+)$", reference(app), re.MULTILINE)
    screens = {name: CliRunner().invoke(app, [*name.split(), "--help"]).output for name in names}
    assert all("Usage:" in screen for screen in screens.values())
    assert not [name for name, screen in screens.items() if "[]" in screen]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_of_the_client(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Every example of docs/client.md runs against a gateway, and prints something."""
    grid = elsewhere.grid

    def runs(record: JobRecord) -> None:
        call = record.request.program.call
        if call is not None:
            grid.write(record.job_id, f"{call.args[0] ** 0.5}".encode(), stream="result")
        if "step" not in record.request.name:
            grid.start(record.job_id)
            grid.write(record.job_id, b"solved\n")
            grid.end(record.job_id)

    grid.runs = runs
    monkeypatch.setenv("GRIDWEAVE_URL", elsewhere.url)
    if "grid.events" in EXAMPLES[number]:
        from gridweave import SyncClient

        with SyncClient() as client:
            client.submit(["true"]).done()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(EXAMPLES[number], f"docs/client.md, example {number}", "exec"), {})
    assert printed.getvalue().strip()
