"""Parse and format a job's needs in the syntax that users write (docs/sharing.md, "What a job needs")."""

from __future__ import annotations

from gridweave.errors import OptionError
from gridweave.site.job import Resources, why_impossible_needs
from gridweave.values import Kinds, named_values

MEMORY = 0.5
"""Default memory of a job as a fraction of a node's memory; two jobs with this default fit on one node."""

_KINDS: Kinds = {"cpu": float, "network": float, "disk": float, "memory": float, "kind": int, "cores": int}
_FRACTIONS = ("cpu", "network", "disk")
_RIGHT = (
    "write for example cpu=0.6,network=0.3,disk=0.1 (fractions of the run time), optionally with memory=0.5, kind=1 "
    "and cores=2"
)


def parse_resources(option: str, text: str) -> Resources:
    """Parse a job's needs; missing fractions of the run time are 0.

    Raises
    ------
    OptionError
        If a name is unknown or given twice, or a value is invalid.

    Examples
    --------
    >>> needs = parse_resources("--resources", "cpu=0.6,network=0.3,disk=0.1")
    >>> needs.cpu, needs.network, needs.disk, needs.memory
    (0.6, 0.3, 0.1, 0.5)
    >>> parse_resources("--resources", "disk=1,memory=0.25").cpu
    0.0
    """
    values = named_values(option, text, _KINDS, _RIGHT)
    fractions = {name: values.get(name, 0.0) for name in _FRACTIONS}
    needs = Resources(
        **fractions,
        memory=values.get("memory", MEMORY),
        cpu_kind=values.get("kind", Resources().cpu_kind),
        cores=values.get("cores", Resources().cores),
    )
    if problem := why_impossible_needs(needs):
        raise OptionError(option, f"{text!r}: {problem}; {_RIGHT}")
    return needs


def resources_text(needs: Resources) -> str:
    """Return a job's needs in the syntax of `parse_resources`.

    Examples
    --------
    >>> resources_text(parse_resources("--resources", "network=0.4, cpu=0.6, kind=1"))
    'cpu=0.6,network=0.4,memory=0.5,kind=1'
    """
    parts = [f"{name}={getattr(needs, name):g}" for name in _FRACTIONS if getattr(needs, name)]
    parts.append(f"memory={needs.memory:g}")
    usual = Resources()
    parts += [f"kind={needs.cpu_kind}"] * (needs.cpu_kind != usual.cpu_kind)
    parts += [f"cores={needs.cores}"] * (needs.cores != usual.cores)
    return ",".join(parts)
