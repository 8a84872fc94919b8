"""Which Slurm cluster a site is, and as what jobs are submitted there."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gridweave.errors import OptionError

ALLOWED = (
    "account",
    "clusters",
    "constraint",
    "exclude",
    "gres",
    "licenses",
    "mail-type",
    "mail-user",
    "mem",
    "mem-per-cpu",
    "nice",
    "nodelist",
    "partition",
    "priority",
    "qos",
    "reservation",
    "wckey",
)
"""Options of ``sbatch`` that may be passed on; all others would change what a job of gridweave is."""

OF_USERS = tuple(name for name in ALLOWED if name not in ("account", "clusters", "partition"))
"""Those of them that an operator may let users give with a job; the others say where a site is, and who pays."""


def check_options(key: str, options: Iterable[str], allowed: tuple[str, ...] = ALLOWED) -> None:
    """Raise OptionError if an option of a file is none of those that may be passed on."""
    for option in options:
        name = option.removeprefix("--").partition("=")[0]
        if name not in allowed:
            raise OptionError(
                key, f"{name!r} is not an option of sbatch that is passed on; those are {', '.join(allowed)}"
            )


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which cluster, and as what jobs are submitted there.

    Attributes
    ----------
    partition : str
        Of which nodes are asked for.
    account, qos : str
        As Slurm knows them; empty: those that it gives to whoever submits.
    conf : str
        Path of the cluster's ``slurm.conf``; empty: where Slurm looks for it itself.
    bin : str
        Folder of Slurm's commands; empty: they are on the path.
    options : tuple of str
        Further options of ``sbatch`` for every job, each as ``name=value``; of `ALLOWED` alone.

    Raises
    ------
    OptionError
        If an option is none that may be passed on.

    Examples
    --------
    >>> SlurmSettings(partition="main", options=("constraint=fast",)).options
    ('constraint=fast',)
    """

    partition: str
    account: str = ""
    qos: str = ""
    conf: str = ""
    bin: str = ""
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.partition):
            raise OptionError("partition", f"{self.partition!r} is the name of none; letters, digits, hyphens")
        check_options("options", self.options)
