"""Read and write amounts of memory, GPUs and other resources as people type them (docs/resources.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec

from gridweave.errors import OptionError
from gridweave.site.resources.chunks import MAX_AMOUNT, Chunk, NodeKind
from gridweave.values import counted, parse_bytes

MB = 10**6
"""Bytes of a megabyte, the unit in which memory is counted."""

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
_NAME = re.compile(_WORD)
_GPUS = re.compile(rf"(?:({_WORD}):)?(\d{{1,10}})", re.ASCII)
_GRES = re.compile(rf"({_WORD})(?::(\d{{1,10}}))?", re.ASCII)


def is_name(text: str) -> bool:
    """Whether a text can be the name of a kind, a label, a type of GPU or another resource."""
    return _NAME.fullmatch(text) is not None


def parse_memory(option: str, text: str) -> int:
    """Parse a size of memory, e.g. ``8GB`` or ``512 MiB``; return MB (10**6 bytes), rounded up.

    Raise OptionError for `option` if the text has no unit, or is not above 0.

    Examples
    --------
    >>> parse_memory("--memory", "8GB"), parse_memory("--memory", "1GiB")
    (8000, 1074)
    """
    if text.strip().isdecimal():
        raise OptionError(option, f"{text!r} has no unit; write for example {text.strip()}MB")
    memory_mb = math.ceil(parse_bytes(option, text) / MB)
    if memory_mb > MAX_AMOUNT:
        raise OptionError(option, f"{text!r} is too much; expected at most {memory_text(MAX_AMOUNT)}")
    return memory_mb


def memory_text(memory_mb: int) -> str:
    """Return a size of memory with four digits or fewer.

    Examples
    --------
    >>> memory_text(8000), memory_text(512), memory_text(1_500_000)
    ('8 GB', '512 MB', '1.5 TB')
    """
    unit = next(power for power in range(3, -1, -1) if power == 0 or memory_mb >= 1000**power)
    return f"{memory_mb / 1000**unit:.4g} {['MB', 'GB', 'TB', 'PB'][unit]}"


def parse_gpus(option: str, value: str | int) -> tuple[int, str]:
    """Parse GPUs, e.g. ``4`` or ``a100:4``; return their number and type, which is empty if any type will do.

    Raise OptionError for `option` unless the number is whole and, with a type, above 0.

    Examples
    --------
    >>> parse_gpus("--gpus", "4"), parse_gpus("--gpus", "a100:4")
    ((4, ''), (4, 'a100'))
    """
    match = _GPUS.fullmatch(str(value).strip())
    if match is None or (match.group(1) and int(match.group(2)) == 0):
        expected = "a whole number such as 4, or a type and a number such as a100:4"
        raise OptionError(option, f"{value!r} is not a number of GPUs; expected {expected}")
    return int(match.group(2)), match.group(1) or ""


def parse_gres(option: str, text: str) -> tuple[str, int]:
    """Parse another countable resource, e.g. ``fpga:2``; without a number, it is 1.

    Examples
    --------
    >>> parse_gres("--gres", "fpga:2"), parse_gres("--gres", "fpga")
    (('fpga', 2), ('fpga', 1))
    """
    match = _GRES.fullmatch(text.strip())
    if match is None:
        raise OptionError(option, f"{text!r} is not a resource; expected a name and a number such as fpga:2")
    return match.group(1), int(match.group(2) or 1)


def gpus_text(number: int, gpu_type: str = "") -> str:
    """Return a number of GPUs and their type.

    Examples
    --------
    >>> gpus_text(1), gpus_text(4, "a100")
    ('1 GPU', '4 a100 GPUs')
    """
    return counted(number, f"{gpu_type} GPU".strip())


def amount_of(name: str, amount: int) -> str:
    """Return an amount of a resource with its unit, if it has one.

    Examples
    --------
    >>> amount_of("memory_mb", 8000), amount_of("gpus", 4)
    ('8 GB', '4')
    """
    return memory_text(amount) if name == "memory_mb" else f"{amount:,}"


def resource_title(name: str) -> str:
    """Return the name of a resource for people.

    Examples
    --------
    >>> resource_title("memory_mb"), resource_title("gpus"), resource_title("fpga")
    ('memory', 'GPUs', 'fpga')
    """
    return {"memory_mb": "memory", "gpus": "GPUs"}.get(name, name)


def chunk_text(chunk: Chunk) -> str:
    """Return what a job asks for in each chunk.

    Examples
    --------
    >>> chunk_text(Chunk(cores=4, memory_mb=8000, gpus=1)), chunk_text(Chunk(cores=0, exclusive=True, labels=("ib",)))
    ('4 cores, 8 GB, 1 GPU', 'a whole node with ib')
    """
    words = ["a whole node" if chunk.is_whole else counted(chunk.cores, "core")]
    words += [memory_text(chunk.memory_mb)] if chunk.memory_mb else []
    words += [gpus_text(chunk.gpus, chunk.gpu_type)] if chunk.gpus else []
    words += [f"{amount:,} {name}" for name, amount in chunk.others]
    text = ", ".join(words) + (f" with {' and '.join(chunk.labels)}" if chunk.labels else "")
    return text + "".join(f", {word}" for word in _placement_words(chunk))


def size_text(width: int, chunk: Chunk | msgspec.UnsetType) -> str:
    """Return the size of a job: its number of nodes, or its chunks and what each of them asks for.

    Examples
    --------
    >>> size_text(4, msgspec.UNSET), size_text(8, Chunk(cores=4, memory_mb=8000))
    ('4 nodes', '8 chunks of 4 cores, 8 GB')
    """
    if not chunk:
        return counted(width, "node")
    if chunk.is_whole:
        return f"{counted(width, 'node')} with {' and '.join(chunk.labels)}"
    return f"{counted(width, 'chunk')} of {chunk_text(chunk)}"


def _placement_words(chunk: Chunk) -> Iterator[str]:
    if chunk.per_node:
        yield f"{chunk.per_node:,} per node"
    if chunk.exclusive and not chunk.is_whole:
        yield "no other job on its nodes"


def kind_text(kind: NodeKind) -> str:
    """Return what each node of a kind has.

    Examples
    --------
    >>> kind_text(NodeKind(name="gpu", count=2, cores=32, memory_mb=512_000, gpus=4, gpu_type="a100", labels=("ib",)))
    '32 cores, 512 GB, 4 a100 GPUs (ib)'
    """
    words = [counted(kind.cores, "core")]
    words += [] if kind.memory_mb is None else [memory_text(kind.memory_mb)]
    words += [gpus_text(kind.gpus, kind.gpu_type)] if kind.gpus else []
    words += [f"{amount:,} {name}" for name, amount in kind.others]
    return ", ".join(words) + (f" ({', '.join(kind.labels)})" if kind.labels else "")
