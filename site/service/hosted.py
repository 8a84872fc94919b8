"""The process of an actor, which its host starts: ``python -m gridweave.site.service.hosted ACTOR HOST-PID``.

What it is to be is read from standard input; where it answers is said on standard output, which it then closes.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys

import msgspec

from gridweave.site.machine.processes import die_with_parent
from gridweave.site.service.calls import HostLines, NearActor, encode
from gridweave.site.service.host import Hosting


def main() -> None:
    """Be an actor for as long as the host lives."""
    die_with_parent(int(sys.argv[2]))
    hosting = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Hosting)
    sys.path[:] = hosting.path
    asyncio.run(_work(hosting))


async def _work(hosting: Hosting) -> None:
    kind, arguments, options = pickle.loads(hosting.made)
    actor: NearActor = kind(*arguments, calls=HostLines(hosting.host, hosting.ip), **options)
    address = await actor.near()
    sys.stdout.buffer.write(encode(address))
    sys.stdout.flush()
    # What is said from now on stands with the complaints: nobody reads the output any more.
    os.dup2(2, 1)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
