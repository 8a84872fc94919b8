"""Arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Trace = Annotated[
    str,
    typer.Argument(metavar="TRACE", help="A file (SWF or MuPSiE; plain, .gz or .xz), or the name of a trace."),
]
Nodes = Annotated[int | None, typer.Option(metavar="N", help="Nodes of the site; if left out, what the trace says.")]
Json = Annotated[bool, typer.Option("--json", help="Print the metrics for machines.")]
