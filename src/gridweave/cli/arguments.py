"""Arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Trace = Annotated[
    str,
    typer.Argument(metavar="TRACE", help="Trace file (SWF or MuPSiE; plain, .gz or .xz) or name of a known trace."),
]
Nodes = Annotated[int | None, typer.Option(metavar="N", help="Nodes of the site. \\[default: as the trace says]")]
Needs = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What tasks need of a node, if the trace does not say: lublin (drawn, nodes with four cores), lublin-root "
        "(with a task that needs more memory than the others), hpc2n (by the memory that the trace tells, nodes with "
        "two), whole (all of a node), or a file (.csv).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
