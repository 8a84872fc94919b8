"""What a machine has: cores and memory within its limits, and the GPUs that ``nvidia-smi`` or NVML lists."""

from __future__ import annotations

import os
import stat
import sys
import types
from pathlib import Path

import pytest

from gridweave.site.machine.cgroups import machine_cpus, machine_memory_bytes
from gridweave.site.machine.hardware.find import Gpu, find_gpus, find_hardware, gpus_of_csv

TWO_GPUS = "0, NVIDIA A100-SXM4-80GB, 81920 MiB\n1, NVIDIA A100-SXM4-80GB, 81920 MiB\n"
A100_MB = 81920 * 2**20 // 10**6


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the only ``nvidia-smi`` on PATH, which does not exist yet; there is no NVML either."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return folder / "nvidia-smi"


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_machine_without_nvidia_smi_has_no_gpus(nvidia_smi: Path) -> None:
    assert find_gpus() == ((), "")
    assert find_hardware().gpus == ()


def test_gpus_are_listed_with_type_memory_and_number(nvidia_smi: Path) -> None:
    """The fake program checks that it gets the documented arguments."""
    arguments = "--query-gpu=index,name,memory.total --format=csv,noheader"
    write_program(
        nvidia_smi, f'[ "$*" = "{arguments}" ] || exit 9\nprintf "{TWO_GPUS.replace(chr(10), chr(92) + "n")}"'
    )
    gpus, problem = find_gpus()
    assert problem == ""
    assert [(gpu.number, gpu.type, gpu.memory_mb) for gpu in gpus] == [(0, "a100", A100_MB), (1, "a100", A100_MB)]
    machine = find_hardware()
    assert (machine.gpu_type, len(machine.gpus)) == ("a100", 2)
    assert machine.text.endswith("2 GPUs (a100)")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'No devices were found' >&2; exit 6", "nvidia-smi failed with exit code 6: No devices were found"),
        ("echo 'Segmentation fault'", "nvidia-smi wrote 'Segmentation fault'; expected index, name, memory"),
        ("echo '0, A100, 1 MiB'; echo '0, A100, 1 MiB'", "nvidia-smi wrote '0, A100, 1 MiB'; expected"),
        ("printf '\\377\\376'", "nvidia-smi wrote"),
        ("kill -9 $$", "nvidia-smi failed with exit code -9"),
    ],
)
def test_broken_output_is_one_line_and_no_gpus(nvidia_smi: Path, script: str, problem: str) -> None:
    write_program(nvidia_smi, script)
    gpus, reason = find_gpus()
    assert gpus == ()
    assert reason.startswith(problem)
    assert reason.endswith("; no GPUs are counted")
    assert "\n" not in reason


def test_a_program_that_cannot_be_executed_is_one_line(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("not a program")
    nvidia_smi.chmod(0o755)
    assert find_gpus()[1].startswith("nvidia-smi cannot be run: ")


def test_nvml_is_asked_if_the_package_is_there(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = types.ModuleType("pynvml")
    nvml.__dict__.update(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda _: b"NVIDIA H100 80GB HBM3",
        nvmlDeviceGetMemoryInfo=lambda _: types.SimpleNamespace(total=80 * 10**9),
        nvmlDeviceGetMinorNumber=lambda handle: handle + 3,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus, problem = find_gpus()
    assert ([(gpu.number, gpu.type, gpu.memory_mb) for gpu in gpus], problem) == (
        [(0, "h100", 80_000), (1, "h100", 80_000)],
        "",
    )

    def fail(_: int) -> None:
        raise RuntimeError("GPU is\nlost")

    nvml.__dict__["nvmlDeviceGetHandleByIndex"] = fail
    assert find_gpus() == ((), "NVML failed: GPU is lost; no GPUs are counted")


def test_device_files_follow_the_minor_numbers_of_the_driver(tmp_path: Path) -> None:
    """The driver's folders are sorted by bus address, as the indexes of ``nvidia-smi`` are."""
    if os.getuid() != 0:
        pytest.skip("device files are not tested: only root can make them")
    for bus, minor in (("0000:07:00.0", 1), ("0000:0a:00.0", 0)):
        folder = tmp_path / "driver" / "gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA A100\nDevice Minor: \t {minor}\n")
    for minor, number in ((0, 5), (1, 7)):
        os.mknod(tmp_path / f"nvidia{minor}", stat.S_IFCHR | 0o600, os.makedev(1, number))
    gpus, _ = gpus_of_csv(TWO_GPUS, driver=tmp_path / "driver", dev=tmp_path)
    assert [gpu.device for gpu in gpus] == [(1, 7), (1, 5)]


def test_without_a_driver_device_files_are_named_after_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()  # an ordinary file is not a device
    gpus, _ = gpus_of_csv("1, Tesla T4, [N/A]\n", driver=tmp_path, dev=tmp_path)
    assert gpus == (Gpu(number=1, type="t4"),)


def test_limits_of_the_control_groups_around_are_limits_of_the_machine(tmp_path: Path) -> None:
    outer = tmp_path / "unified"
    inner = outer / "a"
    inner.mkdir(parents=True)
    for folder in (outer, inner):
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup").write_text("0::/a\n")
    (tmp_path / "mountinfo").write_text(f"1 1 0:1 / {outer} rw - cgroup2 cgroup2 rw\n")
    assert machine_cpus(str(tmp_path)) is None
    (inner / "cpu.max").write_text("max 100000\n")
    (outer / "cpu.max").write_text("250000 100000\n")
    (outer / "memory.max").write_text("4096\n")
    (inner / "memory.max").write_text("max\n")
    assert machine_cpus(str(tmp_path)) == 2.5
    assert machine_memory_bytes(str(tmp_path)) == 4096


def test_limits_of_version_1_count_too(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("3:cpu,cpuacct:/\n")
    (tmp_path / "mountinfo").write_text(f"1 1 0:1 / {tmp_path} rw - cgroup cgroup rw,cpu\n")
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert machine_cpus(str(tmp_path)) is None
    (tmp_path / "cpu.cfs_quota_us").write_text("50000\n")
    assert machine_cpus(str(tmp_path)) == 0.5


def test_cores_are_those_that_this_process_may_use(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridweave.site.machine.hardware.find.machine_cpus", lambda: None)
    machine = find_hardware()
    assert {thread for core in machine.threads for thread in core} == os.sched_getaffinity(0)
    assert machine.cores == len(machine.threads)
    monkeypatch.setattr("gridweave.site.machine.hardware.find.machine_cpus", lambda: 0.5)
    limited = find_hardware()
    # Cores of a container that only has a share of the processor time belong to others as well.
    assert limited.cores == 1
    assert limited.threads == () or machine.cores == 0
