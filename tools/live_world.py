"""Run many seeds of the live grid in virtual time: ``python tools/live_world.py FIRST COUNT [restart|pause]``.

`tests/support/live_world.py` says what is drawn from a seed and what is checked.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.live_world import play


def main() -> None:
    """Run many seeds and print those that fail; the optional third argument is `evicted` of `LiveWorld`."""
    logging.disable()
    first, count, evicted = int(sys.argv[1]), int(sys.argv[2]), "".join(sys.argv[3:4])
    failed = evictions = pauses = killed = 0
    for seed in range(first, first + count):
        try:
            world = play(seed, evicted=evicted)
            evictions, pauses, killed = evictions + world.evictions, pauses + world.pauses, killed + world.killed_amid
        except Exception as error:
            failed += 1
            if count == 1:  # show the traceback
                raise
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    what = f"{evictions} evictions, {pauses} pauses, {killed} kills of a site amid them"
    print(f"{count} seeds, {failed} failed, {what}")


if __name__ == "__main__":
    main()
