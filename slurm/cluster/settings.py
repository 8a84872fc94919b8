"""The settings for a Slurm cluster: how to reach it, and how to submit jobs there."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gridweave.errors import OptionError

ALLOWED = (
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
    "priority",
    "qos",
    "reservation",
    "wckey",
)
"""Options that may be passed on to ``sbatch``; all other options would interfere with gridweave."""

INSTEAD = {
    "account": "account sets it, or users for each user",
    "clusters": "conf selects the cluster",
    "partition": "partition selects the nodes",
}
"""Maps ``sbatch`` options for the cluster, partition and account to the settings that replace them."""

SUBMITS = ("self", "sudo", "uid", "rest")
"""Who submits jobs.

``self``: the site's account. ``sudo``: each user's account, through ``sudo``. ``uid``: root, with ``sbatch --uid``.
``rest``: each user's account, with its token for slurmrestd.
"""

OVER_REST = {"constraint": "constraints"} | {name: name for name in ("licenses", "nice", "qos", "reservation", "wckey")}
"""Options of ``sbatch`` that can be passed on over slurmrestd, with slurmrestd's names for them."""


ACCESSES = ("commands", "rest")
"""How the site queries Slurm and submits its own jobs: with Slurm's commands, or over slurmrestd."""


_LETTERS = "letters, digits, hyphens, underscores and dots"


def whole_minutes(length_ms: int) -> int:
    """Convert a time limit to minutes, Slurm's unit, rounded up.

    Examples
    --------
    >>> whole_minutes(60_001)
    2
    """
    return -(-length_ms // 60_000)


def check_options(key: str, options: Iterable[str], allowed: tuple[str, ...] = ALLOWED) -> None:
    """Raise OptionError for `key` if one of its options may not be passed on to ``sbatch``."""
    for option in options:
        name = option.removeprefix("--").partition("=")[0]
        if name in INSTEAD:
            raise OptionError(key, f"{name!r} is not passed on to sbatch; the key {INSTEAD[name]}")
        if name not in allowed:
            raise OptionError(
                key, f"{name!r} is not an option that is passed on to sbatch; expected one of {', '.join(allowed)}"
            )


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a Slurm cluster, and how to submit jobs there.

    Attributes
    ----------
    partition : str
        The partition whose nodes are requested.
    account, qos : str
        The Slurm account to charge and the quality of service; empty: the submitter's defaults in Slurm.
    conf : str
        Path of the cluster's ``slurm.conf``; empty: Slurm's default.
    bin : str
        Folder of Slurm's commands; empty: search the path.
    options : tuple of str
        Further ``sbatch`` options for every job, as ``name=value``; only names in `ALLOWED`.
    submit : str
        Who submits jobs, one of `SUBMITS`.
    access : str
        How the site queries Slurm, one of `ACCESSES`.
    rest : str
        Address of slurmrestd, if used: ``unix:/path``, ``https://host:port``, or ``http://localhost:port``, since only
        this machine may be reached without TLS.
    ca : str
        File with slurmrestd's certificate authority; empty: trust the system's certificate authorities.
    tokens : str
        Folder with a file ``ACCOUNT.jwt`` for each account that submits or queries, which contains its token.
    token_command : tuple of str
        Command that prints an account's token, as an alternative to ``tokens``; ``{account}`` stands for its name.
    chunks : bool
        Whether jobs may ask for parts of nodes, so that each query includes what is free on every node.

    Raises
    ------
    OptionError
        If an option may not be passed on, or the settings for submission, slurmrestd and tokens contradict each other.

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
    submit: str = "self"
    access: str = "commands"
    rest: str = ""
    ca: str = ""
    tokens: str = ""
    token_command: tuple[str, ...] = ()
    chunks: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.partition):
            raise OptionError("partition", f"is {self.partition!r}; expected {_LETTERS}")
        if self.submit not in SUBMITS:
            raise OptionError("submit", f"is {self.submit!r}; expected one of {', '.join(SUBMITS)}")
        if self.access not in ACCESSES:
            raise OptionError("access", f"is {self.access!r}; expected one of {', '.join(ACCESSES)}")
        check_options("options", self.options, tuple(OVER_REST) if self.submits_over_rest else ALLOWED)
        if "rest" in (self.submit, self.access):
            self._check_rest()
            return
        for name in ("rest", "ca", "tokens", "token_command"):
            if getattr(self, name):
                raise OptionError(name, "needs submit = 'rest' or access = 'rest'; set one of these, or omit it")

    @property
    def submits_over_rest(self) -> bool:
        """Whether jobs are submitted over slurmrestd, as the site's account or as the users' accounts."""
        return self.submit == "rest" or (self.submit == "self" and self.access == "rest")

    def named(self, account: str = "") -> dict[str, str]:
        """Return the partition, account and QOS as options of ``sbatch``; empty ones are omitted."""
        options = {"partition": self.partition, "account": account or self.account, "qos": self.qos}
        return {name: value for name, value in options.items() if value}

    def _check_rest(self) -> None:
        if not re.fullmatch(
            r"unix:/\S+|https://[\w.:\[\]-]+(/[\w./-]*)?|http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", self.rest
        ):
            right = "unix:/PATH, https://HOST:PORT or, on this machine only, http://127.0.0.1:PORT"
            raise OptionError("rest", f"is {self.rest!r}; expected slurmrestd's address: {right}")
        if self.ca and not self.rest.startswith("https:"):
            raise OptionError("ca", f"needs an https address, but rest is {self.rest!r}; omit it")
        if bool(self.tokens) == bool(self.token_command):
            raise OptionError("tokens", "needs a folder, or token_command a command; give exactly one of the two")
