"""Hardware threads of this machine and which of them share a core, as the kernel tells in sysfs."""

from __future__ import annotations

import os
from pathlib import Path

from gridweave.errors import InputError

SYSFS = Path("/sys/devices/system/cpu")


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Read a list of hardware threads as the kernel writes it.

    Examples
    --------
    >>> parse_cpu_list("0-2,8")
    (0, 1, 2, 8)
    """
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
            raise InputError(f"list of hardware threads {text.strip()!r}: must be like '0-3,8'")
        numbers.update(range(int(first), int(last) + 1))
    return tuple(sorted(numbers))


def thread_siblings(sysfs: Path = SYSFS) -> tuple[tuple[int, ...], ...]:
    """Return the hardware threads of each core, the cores in order of their first thread.

    Threads that are switched off are not in it: the kernel shows no topology for them. A thread whose siblings are not
    told stands alone.
    """
    cores: set[tuple[int, ...]] = set()
    for folder in sysfs.glob("cpu[0-9]*"):
        number = folder.name.removeprefix("cpu")
        if not number.isdecimal() or not (folder / "topology").is_dir():
            continue
        # Newer kernels call it core_cpus_list; the older name is there as well until it goes.
        for name in ("thread_siblings_list", "core_cpus_list"):
            if (folder / "topology" / name).is_file():
                cores.add(parse_cpu_list((folder / "topology" / name).read_text(encoding="ascii")))
                break
        else:
            cores.add((int(number),))
    if not cores:
        raise InputError(f"{sysfs}: has no hardware thread; it must contain cpu0/topology and so on")
    return tuple(sorted(cores))


def usable_cores(sysfs: Path = SYSFS, allowed: set[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """Return the threads of each core that this process may use: a container or a cpuset may narrow them."""
    may = os.sched_getaffinity(0) if allowed is None else allowed
    kept = (tuple(thread for thread in core if thread in may) for core in thread_siblings(sysfs))
    return tuple(core for core in kept if core)
