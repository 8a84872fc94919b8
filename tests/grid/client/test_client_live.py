"""The client before a real grid: real processes, their output and results, all the way through the gateway."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gridweave.errors import JobFailedError
from gridweave.grid.client.client import Client
from gridweave.grid.client.scripts import shipped, slurm_lines
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.server import Gateway
from support.live_grids import LocalGrid

SCRIPT = """\
#!/usr/bin/env python3
import os, sys
print(os.environ["SLURM_JOB_ID"], os.environ["GRIDWEAVE_SIZE"], sys.argv[1:])
"""


async def _use(grid: Client) -> None:
    assert await grid.map("math:sqrt", range(12), limit="1h", at_once=6) == [number**0.5 for number in range(12)]

    text = "for i in 1 2 3; do echo $i of $GRIDWEAVE_RANK; done"
    job = await grid.submit(["sh", "-c", text], nodes=5, limit="1h", name="wide")
    assert [line async for line in job.logs(follow=True, rank=4)] == ["1 of 4", "2 of 4", "3 of 4"]
    record = await job.check()
    assert sum(nodes for _, nodes in record.places) == 5
    assert len(record.places) == 2, "it is wider than any site"

    argv = shipped(("a b", "it's"), SCRIPT, preamble=slurm_lines("job.py"), output=None, error=None, name="job.py")
    script = await grid.submit(argv, limit="1h")
    await script.check()
    assert (await script.output()).decode() == f"{script.id} 1 ['a b', \"it's\"]\n"

    with pytest.raises(JobFailedError, match="ValueError") as caught:
        await grid.map("math:sqrt", [-1], limit="1h")
    assert caught.value.exit_code == 1
    assert "Traceback" in caught.value.stderr_tail

    first, raised, last = await grid.map("math:sqrt", [4, -1, 16], limit="1h", pack=3, return_exceptions=True)
    assert (first, str(raised).partition(": ")[2], last) == (2.0, "item 1: ValueError: math domain error", 4.0)
    ignored, killed, behind = await grid.map(
        "signal:raise_signal", [signal.SIGCHLD, signal.SIGKILL, 0], limit="1h", pack=3, return_exceptions=True
    )
    assert (ignored, killed) == (None, behind), "what a dying process had done is kept"
    assert "rank 0 was ended by SIGKILL" in str(killed)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_real_jobs(no_configuration: None, tmp_path: Path) -> None:
    """Calls return their results, a split job writes on both sites, scripts run as they are, errors are whole."""
    async with LocalGrid(tmp_path) as local:
        gateway = Gateway(local.backend, GatewaySettings(port=0))
        await gateway.start()
        try:
            async with Client(gateway.url) as grid:
                await _use(grid)
        finally:
            await gateway.stop()
