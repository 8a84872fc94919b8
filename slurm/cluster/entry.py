"""The entry of the discipline slurm in the dictionary: the options of such a site, and its policy from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from gridweave.errors import OptionError
from gridweave.site.disciplines.entry import Entry, Lender, Options, refuse_unknown
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.launch import MachineRules
from gridweave.site.nodes.source import NodeSource
from gridweave.slurm.cluster.settings import ALLOWED, OVER_REST, SlurmSettings, check_options
from gridweave.slurm.per_job import AskedJobs, OneAllocationPerJob
from gridweave.slurm.pilots import Pilots
from gridweave.slurm.policy import NAME, BatchPolicy, PilotRules, check_discipline
from gridweave.slurm.system import BatchUser


class PilotTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rules for pilots: ``pilots`` in the table ``slurm``. The site's ``nodes`` are the most that all pilots have.

    Attributes
    ----------
    discipline : str
        Schedules jobs in the pilots; its options are those of the site, and its own table is next to ``slurm``.
    size, keep : int
    hours, job_hours, idle_s : float
        See `PilotRules`; the units are in the names.
    """

    discipline: Annotated[str, Meta(description="Which jobs get the nodes that are there, and how.")] = "queue"
    size: Annotated[int, Meta(description="The nodes of a pilot at most.")] = 1
    hours: Annotated[float, Meta(description="The longest time for which a pilot is asked for.")] = 4.0
    job_hours: Annotated[float, Meta(description="The longest that a job in a pilot may take.")] = 1.0
    idle_s: Annotated[float, Meta(description="An idle pilot is given back after so long.")] = 120.0
    keep: Annotated[int, Meta(description="So many nodes are kept though nothing waits.")] = 0


class UserTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The accounts for a user's jobs: an entry of ``users`` in the table ``slurm``.

    Attributes
    ----------
    account : str
        The Slurm account that pays.
    runs_as : str
        The Unix account that submits and runs the jobs.
    """

    account: Annotated[str, Meta(description="The account of Slurm that pays.")] = ""
    runs_as: Annotated[str, Meta(description="The Unix account as which the user's jobs run.")] = ""


class SlurmTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a site reaches its Slurm cluster and requests nodes there: ``slurm`` in an entry of ``[[sites]]``.

    Attributes
    ----------
    partition, account, qos, conf, bin : str
    options : list of str
        See `gridweave.slurm.cluster.settings.SlurmSettings`.
    user_options : list of str
        Names of the options of ``sbatch`` that users may give with a job; only those in `ALLOWED`.
    users : dict of str to UserTable
        The accepted users, and the accounts for their jobs; a string is the Slurm account that pays (empty: `account`).
        If there are none, the table ``launcher`` names the accepted users.
    submit, access, rest, ca, tokens, token_command
        See `gridweave.slurm.cluster.settings.SlurmSettings`.
    folder : str
        Working folder of allocations, which keeps jobs and their output; every node must see it under this path.
    host : str
        The name by which nodes reach the site; empty: its host name.
    python : str
        The Python on every node that has gridweave installed; empty: the path of the site's Python.
    most_asked : int
        See `BatchPolicy`.
    poll_s : float
        Time between two queries of the cluster; longer while it does not answer.
    lease_s : float
        A node that runs nothing gives itself back when it has not heard from the site for this long.
    pilots : PilotTable, optional
        None: Slurm decides when each job starts.
    """

    partition: Annotated[str, Meta(description="Of which nodes are asked for.")]
    folder: Annotated[str, Meta(description="A folder that every node sees under this path.")]
    account: str = ""
    qos: str = ""
    conf: str = ""
    bin: str = ""
    options: list[str] = []
    user_options: Annotated[list[str], Meta(description="Options of sbatch that users may give with a job.")] = []
    users: Annotated[
        dict[str, str | UserTable], Meta(description="Whose jobs are taken, and as what they are submitted.")
    ] = {}
    submit: Annotated[str, Meta(description="Who submits: the site, or each user's own account.")] = "self"
    access: Annotated[str, Meta(description="How the site looks at Slurm: commands or rest.")] = "commands"
    rest: Annotated[str, Meta(description="Where slurmrestd listens.")] = ""
    ca: Annotated[str, Meta(description="The authority that has signed the certificate of slurmrestd.")] = ""
    tokens: Annotated[str, Meta(description="The folder of the tokens for slurmrestd.")] = ""
    token_command: Annotated[list[str], Meta(description="What prints a token for slurmrestd.")] = []
    host: str = ""
    python: str = ""
    most_asked: Annotated[int, Meta(description="Nodes are asked for on behalf of so many waiting jobs.")] = 100
    poll_s: Annotated[float, Meta(description="So often the cluster is looked at.")] = 3.0
    lease_s: Annotated[float, Meta(description="After so long without the site nodes give themselves back.")] = 600.0
    pilots: Annotated[PilotTable | None, Meta(description="Nodes are asked for ahead of work.")] = None

    @property
    def settings(self) -> SlurmSettings:
        """How to reach the cluster, and how to submit jobs there."""
        names = ("partition", "account", "qos", "conf", "bin", "submit", "access", "rest", "ca", "tokens")
        named = {name: getattr(self, name) for name in names}
        return SlurmSettings(options=tuple(self.options), token_command=tuple(self.token_command), **named)

    @property
    def batch_users(self) -> dict[str, BatchUser]:
        """The accounts for each user's jobs."""
        tables = {user: UserTable(account=to) if isinstance(to, str) else to for user, to in self.users.items()}
        return {user: BatchUser(account=to.account, runs_as=to.runs_as) for user, to in tables.items()}

    def rules(self, others: MachineRules) -> MachineRules:
        """Return which jobs the nodes start: `others` with the options of this table, and its users if it has any."""
        rules = msgspec.structs.replace(others, options=tuple(self.user_options))
        return msgspec.structs.replace(rules, owner="", mapped=tuple(self.users)) if self.users else rules


def read_policy(nodes: int, site_options: Options, usual: Options) -> BatchPolicy:
    """Return the policy of a site whose nodes belong to Slurm, from its option ``slurm``."""
    table: SlurmTable | None = site_options.get(NAME)
    if table is None or table.pilots is None:
        refuse_unknown(
            site_options, (NAME,), "is not for a site whose nodes belong to Slurm, which decides what starts when"
        )
    if table is None:
        raise OptionError(NAME, "is missing: a table that names at least the partition and a folder (docs/slurm.md)")
    check_table(table)
    pilots = None if table.pilots is None else read_pilots(table.pilots, nodes, site_options, usual)
    return BatchPolicy(most_asked=table.most_asked, pilots=pilots)


def check_table(table: SlurmTable) -> None:
    """Raise OptionError if a value in the table of a site is invalid, on whatever machine."""
    settings = table.settings
    check_options("user_options", table.user_options, tuple(OVER_REST) if settings.submits_over_rest else ALLOWED)
    users = table.batch_users
    for user, to in users.items():
        if not (user and user.isprintable() and re.fullmatch(r"[\w.-]*", to.account)):
            problem = f"{user!r} = {to.account!r}: write USER = 'ACCOUNT', with '' for that of the site"
            raise OptionError("users", problem)
        _check_runs_as(user, to.runs_as, table.submit)
    if table.submit != "self" and not users:
        right = "name them in a table users, as anna = { runs_as = 'anna' }"
        raise OptionError("users", f"are missing, whose own accounts submit under submit = {table.submit!r}; {right}")
    if table.submit != "self" and table.pilots is not None:
        right = "leave out one of the two"
        raise OptionError("pilots", f"run as one account, and under submit = {table.submit!r} jobs do not; {right}")
    if table.pilots is not None and (table.user_options or any(batch_user.account for batch_user in users.values())):
        name = "user_options" if table.user_options else "users"
        right = "leave them out" if table.user_options else "write '' for the account of the site"
        raise OptionError(name, f"cannot be told Slurm with a pilot, which is asked for ahead of its jobs; {right}")
    if not table.folder.startswith("/"):
        raise OptionError("folder", f"{table.folder!r} must be an absolute path, the same on all nodes of the cluster")
    for name, least in (("poll_s", 0.1), ("lease_s", 10.0)):
        if not least <= getattr(table, name) <= 86_400:
            raise OptionError(name, f"is {getattr(table, name):g}; from {least:g} to 86400 seconds")


def _check_runs_as(user: str, runs_as: str, submit: str) -> None:
    """Raise OptionError if a user's ``runs_as`` does not fit ``submit`` or is no valid account name."""
    if submit == "self" and runs_as:
        problem = f"{user!r} has runs_as = {runs_as!r}, and jobs run as the account of the site; give submit = 'sudo'"
        raise OptionError("users", f"{problem}, 'uid' or 'rest', or leave it out")
    if submit != "self" and not re.fullmatch(r"[A-Za-z_][\w.-]*", runs_as, re.ASCII):
        problem = f"{user!r} has runs_as = {runs_as!r}: under submit = {submit!r} it must name a Unix account"
        raise OptionError("users", problem)
    if runs_as == "root":
        raise OptionError("users", f"{user!r} has runs_as = 'root': nothing runs as root; name an ordinary account")


def read_pilots(table: PilotTable, nodes: int, site_options: Options, usual: Options) -> PilotRules:
    """Return the rules for pilots; their discipline takes its options from those of the site."""
    for name, hours in (("hours", table.hours), ("job_hours", table.job_hours), ("idle_s", table.idle_s / 3600)):
        if not 0 <= hours <= 744:
            raise OptionError(name, f"is {getattr(table, name):g}; from 0 to 31 days")
    if table.keep > nodes:
        raise OptionError("keep", f"is {table.keep}; the site has {nodes} nodes at most")
    entry = check_discipline(table.discipline)
    policy = entry.read(nodes, {key: site_options[key] for key in site_options if key != NAME}, usual)
    return PilotRules(
        policy=policy,
        size=table.size,
        length_ms=int(table.hours * 3_600_000),
        job_ms=int(table.job_hours * 3_600_000),
        idle_ms=int(table.idle_s * 1_000),
        keep=table.keep,
    )


def make_source(nodes: int, policy: BatchPolicy, week: WeekClock = FROM_MONDAY) -> NodeSource:
    """Return the nodes of a site: with an allocation for each job, or with pilots."""
    return (OneAllocationPerJob if policy.pilots is None else Pilots)(nodes, policy, week)


def discipline_inside(table: SlurmTable | None) -> str:
    """Return the discipline that schedules jobs in the pilots of a site; `NAME` if it has none."""
    return NAME if table is None or table.pilots is None else table.pilots.discipline


def launcher_problems(table: SlurmTable | None, kind: str, trust: str) -> Iterator[tuple[str, str]]:
    """Yield the problems of the keys of the table ``launcher`` on a site whose nodes belong to Slurm."""
    if kind == "user":
        yield (
            "kind",
            "is 'user', and no launcher is on the nodes of Slurm; give 'self', and see submit in docs/slurm.md",
        )
    if table is not None and table.users and trust == "all":
        yield "trust", "is 'all', and users of slurm says whose jobs are taken; leave one out"


ENTRY = Entry(
    name=NAME,
    about="the nodes belong to a Slurm cluster, which decides what starts when",
    make=AskedJobs,
    read=read_policy,
    table=SlurmTable,
    table_key=NAME,
    lender=Lender(
        make=make_source,
        policy_inside=lambda policy: policy.inside,
        discipline_inside=discipline_inside,
        launcher_problems=launcher_problems,
    ),
)
