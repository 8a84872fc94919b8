"""Brings back what is missing of a grid on this machine, as a second `up` does: told by the keeper, in a process.

What went wrong is the last line of standard output.
"""

from __future__ import annotations

import sys

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.grid.config.reading import grid_of_text
from gridweave.grid.service.local import bring_up, wanted_grid
from gridweave.grid.service.state import read_grid_state


def mend(name: str) -> None:
    """Start what is missing of a grid, by what is written down of it; UnavailableError if nothing is."""
    state = read_grid_state(name)
    if state is None:
        raise UnavailableError(f"no record of a grid named {name!r}")
    read = grid_of_text(state.text, state.file, state.base)
    address = None if state.own_ray else state.address
    bring_up(wanted_grid(read, name=name, address=address), lambda what: None)


def main() -> int:
    """Mend the grid that is named by the first argument."""
    try:
        mend(sys.argv[1])
    except GridweaveError as error:
        print(" ".join(str(error).split()), flush=True)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
