"""``gridweave simulate --show-matrix``: the matrix of a site that shares its nodes in time, at an instant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.output import print_table
from gridweave.errors import OptionError
from gridweave.site.times import parse_time_ms, span_text

if TYPE_CHECKING:
    from gridweave.scenarios.workload.table import Workload
    from gridweave.site.disciplines.protocol import Policy

ShowMatrix = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="For gang: print who has which nodes in which time slice at an instant, such as 10d; times count from the "
        "begin of the trace.",
    ),
]


def check_matrix_option(text: str | None, chosen: list[Policy]) -> int | None:
    """Return the instant for which the matrix is asked; None if it is not.

    Raises
    ------
    OptionError
        If the text is not a time, or a policy has no matrix.
    """
    from gridweave.site.disciplines.gang.policy import NAME

    if text is None:
        return None
    if any(policy.discipline != NAME for policy in chosen):
        raise OptionError("--show-matrix", f"goes with --discipline {NAME}; no other has a matrix")
    return parse_time_ms("--show-matrix", text)


def print_matrices(workload: Workload, nodes: int | None, chosen: list[Policy], at_ms: int) -> None:
    """Print the matrix of each policy at an instant; the slice that goes on is marked."""
    from gridweave.scenarios.batch.gang import matrix_at
    from gridweave.site.disciplines.gang.matrix import matrix_rows
    from gridweave.site.disciplines.gang.policy import GangPolicy

    for policy in chosen:
        assert isinstance(policy, GangPolicy), "it was checked that there is a matrix"
        headings, rows = matrix_rows(*matrix_at(workload, nodes or workload.nodes or 1, policy, at_ms))
        typer.echo("")
        print_table(
            rows, headings=headings, title=f"{policy.label} at {span_text(at_ms)} (*: the slice that goes on)", left=1
        )
