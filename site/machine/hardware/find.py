"""Find the cores, the memory and the GPUs of this machine."""

from __future__ import annotations

import importlib
import logging
import os
import re
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError
from gridweave.site.machine.agent import SYSFS, Cores, usable_cores
from gridweave.site.machine.cgroups import machine_cpus, machine_memory_bytes

logger = logging.getLogger("gridweave.live")

QUERY = ("--query-gpu=index,name,memory.total", "--format=csv,noheader")
"""Arguments with which ``nvidia-smi`` lists the GPUs."""

_QUERY_S = 60.0
"""Time limit for ``nvidia-smi``, which first loads the driver if nothing else has [s]."""

_GPU_LINE = re.compile(r"(\d+), *(.+), *(?:(\d+) *MiB|\[.*\])")
_MOST_SHOWN = 80


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a machine.

    Attributes
    ----------
    number : int
        Its index in ``nvidia-smi``, and in CUDA if CUDA sorts the GPUs by bus (``CUDA_DEVICE_ORDER=PCI_BUS_ID``).
    type : str
        Short name, e.g. ``a100`` (`gpu_type`).
    memory_mb : int
        Memory in MB (10**6 bytes); 0 if unknown.
    device : tuple of (int, int), optional
        Major and minor number of its device file; None if there is no such file here.
    """

    number: int
    type: str
    memory_mb: int = 0
    device: tuple[int, int] | None = None


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The cores, memory and GPUs of a machine, as far as this process may use them.

    Attributes
    ----------
    cores : int
        Number of cores; hardware threads that share a core count as one.
    memory_mb : int
        Memory in MB (10**6 bytes).
    gpus : tuple of Gpu
        In ascending order of their numbers.
    threads : tuple of tuple of int
        Hardware threads of each core; empty if the kernel does not list the cores, or if only CPU time is limited, as
        in some containers, which then share the cores with other programs.
    problem : str
        Why GPUs may be missing, in one line; empty if nothing failed.
    """

    cores: int
    memory_mb: int
    gpus: tuple[Gpu, ...] = ()
    threads: Cores = ()
    problem: str = ""

    @property
    def gpu_type(self) -> str:
        """The type of the GPUs; empty if there are none, or several types."""
        types = {gpu.type for gpu in self.gpus}
        return types.pop() if len(types) == 1 else ""

    @property
    def text(self) -> str:
        """The machine in words.

        Examples
        --------
        >>> Hardware(cores=8, memory_mb=64_000, gpus=(Gpu(number=0, type="a100"), Gpu(number=1, type="a100"))).text
        '8 cores, 64 GB of memory, 2 GPUs (a100)'
        """
        types = ", ".join(dict.fromkeys(gpu.type for gpu in self.gpus))
        gpus = f"{len(self.gpus)} GPU{'s' * (len(self.gpus) > 1)} ({types})" if self.gpus else "no GPU"
        return f"{self.cores} core{'s' * (self.cores > 1)}, {self.memory_mb / 1000:.3g} GB of memory, {gpus}"


def find_hardware(*, sysfs: Path = SYSFS) -> Hardware:
    """Return this machine's hardware, reduced to the limits of this process's container or control group."""
    try:
        threads = usable_cores(sysfs)
    except InputError:  # some containers hide the cores
        threads = ()
    cores = len(threads) or len(os.sched_getaffinity(0))
    limit = machine_cpus()
    if limit is not None and limit < cores:
        cores, threads = max(1, int(limit)), ()
    gpus, problem = find_gpus()
    return Hardware(cores=cores, memory_mb=machine_memory_bytes() // 10**6, gpus=gpus, threads=threads, problem=problem)


def find_gpus() -> tuple[tuple[Gpu, ...], str]:
    """Return this machine's NVIDIA GPUs, and the problem in one line; empty if nothing failed.

    Ask ``nvidia-smi``, or NVML through the package ``pynvml`` if there is no such program. A machine without either
    has no GPUs.
    """
    try:
        output = subprocess.run(
            ["nvidia-smi", *QUERY], capture_output=True, text=True, errors="replace", timeout=_QUERY_S, check=False
        )
    except FileNotFoundError:
        return _gpus_of_nvml()
    except (OSError, subprocess.SubprocessError) as error:
        why = "does not answer" if isinstance(error, subprocess.TimeoutExpired) else f"cannot be run: {error}"
        return (), _problem(f"nvidia-smi {why}")
    if output.returncode != 0:
        message = " ".join((output.stderr.strip() or output.stdout.strip()).split())[:_MOST_SHOWN]
        return (), _problem(f"nvidia-smi failed with exit code {output.returncode}: {message}")
    return gpus_of_csv(output.stdout)


def _problem(what: str) -> str:
    return f"{what}; no GPUs are counted"


def gpus_of_csv(
    text: str, *, driver: Path = Path("/proc/driver/nvidia"), dev: Path = Path("/dev")
) -> tuple[tuple[Gpu, ...], str]:
    """Parse the output of ``nvidia-smi``; return the GPUs, and the problem with the output in one line.

    Examples
    --------
    >>> gpus, _ = gpus_of_csv("0, NVIDIA A100-SXM4-80GB, 81920 MiB")
    >>> gpus[0].type, gpus[0].memory_mb
    ('a100', 85899)
    >>> gpus_of_csv("Segmentation fault")[1]
    "nvidia-smi wrote 'Segmentation fault'; expected index, name, memory; no GPUs are counted"
    """
    listed: dict[int, tuple[str, int]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _GPU_LINE.fullmatch(line)
        if match is None or int(match[1]) in listed:
            return (), _problem(f"nvidia-smi wrote {line[:_MOST_SHOWN]!r}; expected index, name, memory")
        listed[int(match[1])] = match[2], int(match[3] or 0) * 2**20 // 10**6
    return _with_devices(listed, _minors(driver), dev), ""


def _minors(driver: Path) -> list[int]:
    """Return the minor numbers of the driver's GPUs in the order of their bus addresses, the order that CUDA uses."""
    minors = []
    for file in sorted(driver.glob("gpus/*/information")):
        match = re.search(r"^Device Minor:\s*(\d+)", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if match is None:
            return []
        minors.append(int(match[1]))
    return minors


def _with_devices(listed: dict[int, tuple[str, int]], minors: list[int], dev: Path) -> tuple[Gpu, ...]:
    # A container may see fewer GPUs than its driver; the files are then named after the GPUs' own numbers.
    numbers = sorted(listed)
    of_numbers = dict(zip(numbers, minors if len(minors) == len(numbers) else numbers, strict=True))
    return tuple(
        Gpu(
            number=number,
            type=gpu_type(listed[number][0]),
            memory_mb=listed[number][1],
            device=device_number(dev / f"nvidia{of_numbers[number]}"),
        )
        for number in numbers
    )


def device_number(path: Path) -> tuple[int, int] | None:
    """Return the major and minor number of a character device; None if the path is anything else."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None


def _gpus_of_nvml() -> tuple[tuple[Gpu, ...], str]:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # the package or the driver is missing, which is normal
        return (), ""
    listed, minors = {}, []
    try:
        for number in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            name = nvml.nvmlDeviceGetName(handle)
            listed[number] = os.fsdecode(name), int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // 10**6
            minors.append(int(nvml.nvmlDeviceGetMinorNumber(handle)))
        return _with_devices(listed, minors, Path("/dev")), ""
    except Exception as error:  # NVMLError has no public base class
        return (), _problem(f"NVML failed: {' '.join(str(error).split())[:_MOST_SHOWN]}")
    finally:
        nvml.nvmlShutdown()


_VENDOR_WORDS = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device"}
_FORM_FACTOR = re.compile(r"\d+gb|hbm\w*|pcie|sxm\d*|nvl|mig")


def gpu_type(name: str) -> str:
    """Return the short name of a GPU: lower case, without vendor, memory and form factor.

    Examples
    --------
    >>> [gpu_type(name) for name in ("NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-16GB", "NVIDIA H100 80GB HBM3")]
    ['a100', 'v100', 'h100']
    >>> gpu_type("NVIDIA GeForce RTX 3080 Ti"), gpu_type("NVIDIA RTX A6000")
    ('rtx-3080-ti', 'rtx-a6000')
    """
    words = re.findall(r"[a-z0-9]+", name.lower())
    kept = [word for word in words if word not in _VENDOR_WORDS and not _FORM_FACTOR.fullmatch(word)]
    return "-".join(kept or words) or "gpu"


def types_text(gpus: Iterable[Gpu]) -> str:
    """Return the types of GPUs with their numbers, e.g. ``a100:4``."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[gpu.type] = counts.get(gpu.type, 0) + 1
    return ", ".join(f"{name}:{count}" for name, count in counts.items())
