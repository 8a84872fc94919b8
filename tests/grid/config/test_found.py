"""Machines as nodes of a site, if the grid finds out what they have."""

from __future__ import annotations

from gridweave.grid.config.found import kinds_of_machines
from gridweave.site.machine.hardware.find import Gpu, Hardware

GPUS = tuple(Gpu(number=number, type="a100") for number in (0, 1, 3))
MACHINE = Hardware(cores=4, memory_mb=8000, gpus=GPUS)


def test_equal_machines_form_one_kind() -> None:
    plain = Hardware(cores=64, memory_mb=256_789)
    mixed = Hardware(cores=64, memory_mb=256_123, gpus=(Gpu(number=0, type="a100"), Gpu(number=1, type="t4")))
    kinds = kinds_of_machines([plain, plain, MACHINE, mixed, plain])
    assert [(kind.name, kind.count, kind.cores, kind.gpus, kind.gpu_type, kind.labels) for kind in kinds] == [
        ("cpu", 2, 64, 0, "", ("cpu",)),
        ("a100", 1, 4, 3, "a100", ("a100",)),
        ("gpu", 1, 64, 2, "", ("gpu",)),
        ("cpu-2", 1, 64, 0, "", ("cpu",)),
    ]
    assert kinds[0].memory_mb == 256_000
