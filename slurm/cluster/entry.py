"""The dictionary entry of the discipline slurm: the options of a Slurm site, and its policy."""

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
from gridweave.slurm.per_job import AskedJobs, OneAllocationPerJob, traits_of
from gridweave.slurm.pilots import Pilots
from gridweave.slurm.policy import NAME, BatchPolicy, PilotRules, check_discipline
from gridweave.slurm.system import BatchUser


class PilotTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The table ``slurm.pilots``, with the rules for pilots. All pilots together have at most the site's ``nodes``.

    Attributes
    ----------
    discipline : str
        The discipline that schedules jobs in the pilots; its options and its own table are next to ``slurm``.
    size, keep : int
    hours, job_hours, idle_s : float
        See `PilotRules`; the units are in the names.
    """

    discipline: Annotated[str, Meta(description="Discipline that schedules jobs in the pilots.")] = "queue"
    size: Annotated[int, Meta(description="Most nodes of a pilot.")] = 1
    hours: Annotated[float, Meta(description="Longest time limit of a pilot.")] = 4.0
    job_hours: Annotated[float, Meta(description="Longest time limit of a job in a pilot.")] = 1.0
    idle_s: Annotated[float, Meta(description="Time after which an idle pilot is given back.")] = 120.0
    keep: Annotated[int, Meta(description="Number of nodes to keep when no job waits.")] = 0


class UserTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The accounts for a user's jobs, an entry of the table ``slurm.users``.

    Attributes
    ----------
    account : str
        The Slurm account that is charged.
    runs_as : str
        The Unix account that submits and runs the jobs.
    """

    account: Annotated[str, Meta(description="Slurm account that pays.")] = ""
    runs_as: Annotated[str, Meta(description="Unix account that runs the user's jobs.")] = ""


class SlurmTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The table ``slurm`` of a site in ``[[sites]]``: how the site reaches its Slurm cluster and requests nodes.

    Attributes
    ----------
    partition, account, qos, conf, bin : str
    options : list of str
        See `gridweave.slurm.cluster.settings.SlurmSettings`.
    user_options : list of str
        Names of the ``sbatch`` options that users may set for a job; only names in `ALLOWED`.
    users : dict of str to UserTable
        The accepted users and the accounts for their jobs; a string is the Slurm account to charge (empty: `account`).
        If the table is empty, the table ``launcher`` names the accepted users.
    submit, access, rest, ca, tokens, token_command
        See `gridweave.slurm.cluster.settings.SlurmSettings`.
    folder : str
        Folder for the allocations' jobs and their output; every node must see it under this path.
    host : str
        Host name at which nodes reach the site; empty: the site's own host name.
    python : str
        Path on every node of a Python with gridweave installed; empty: the path of the site's Python.
    most_asked : int
        See `BatchPolicy`.
    poll_s : float
        Time between two queries of the cluster; longer while the cluster does not answer.
    lease_s : float
        Time without contact with the site after which an idle node gives itself back.
    pilots : PilotTable, optional
        The rules for pilots; None: no pilots, so Slurm decides when each job starts.
    chunks : bool
        Whether jobs may ask for cores, memory and GPUs instead of whole nodes; not in pilots.
    """

    partition: Annotated[str, Meta(description="Partition whose nodes are requested.")]
    folder: Annotated[str, Meta(description="Folder that every node sees under this path.")]
    account: str = ""
    qos: str = ""
    conf: str = ""
    bin: str = ""
    options: list[str] = []
    user_options: Annotated[list[str], Meta(description="Options of sbatch that users may give with a job.")] = []
    users: Annotated[
        dict[str, str | UserTable], Meta(description="Accepted users, and the accounts for their jobs.")
    ] = {}
    submit: Annotated[str, Meta(description="Who submits: the site, or each user's own account.")] = "self"
    access: Annotated[str, Meta(description="How the site queries Slurm: commands or rest.")] = "commands"
    rest: Annotated[str, Meta(description="Address of slurmrestd.")] = ""
    ca: Annotated[str, Meta(description="File with the certificate authority of slurmrestd.")] = ""
    tokens: Annotated[str, Meta(description="Folder of the tokens for slurmrestd.")] = ""
    token_command: Annotated[list[str], Meta(description="Command that prints a token for slurmrestd.")] = []
    host: str = ""
    python: str = ""
    most_asked: Annotated[int, Meta(description="Number of waiting jobs for which nodes are requested.")] = 100
    poll_s: Annotated[float, Meta(description="Time between two queries of the cluster.")] = 3.0
    lease_s: Annotated[float, Meta(description="Time without the site after which nodes give themselves back.")] = 600.0
    pilots: Annotated[PilotTable | None, Meta(description="Rules for requesting nodes ahead of jobs.")] = None
    chunks: Annotated[bool, Meta(description="Whether jobs may ask for parts of nodes.")] = True

    @property
    def settings(self) -> SlurmSettings:
        """The settings for reaching the cluster and submitting jobs there."""
        names = ("partition", "account", "qos", "conf", "bin", "submit", "access", "rest", "ca", "tokens")
        named = {name: getattr(self, name) for name in names}
        chunks = self.chunks and self.pilots is None
        return SlurmSettings(
            options=tuple(self.options), token_command=tuple(self.token_command), chunks=chunks, **named
        )

    @property
    def batch_users(self) -> dict[str, BatchUser]:
        """The Slurm account and Unix account that each user's jobs use, by user."""
        tables = {user: UserTable(account=to) if isinstance(to, str) else to for user, to in self.users.items()}
        return {user: BatchUser(account=to.account, runs_as=to.runs_as) for user, to in tables.items()}

    def rules(self, others: MachineRules) -> MachineRules:
        """Return the rules for the jobs that nodes start: `others`, with the options and any users of this table."""
        rules = msgspec.structs.replace(others, options=tuple(self.user_options))
        return msgspec.structs.replace(rules, owner="", mapped=tuple(self.users)) if self.users else rules


def read_policy(nodes: int, site_options: Options, usual: Options) -> BatchPolicy:
    """Return the policy of a Slurm site, from its option ``slurm``; raise OptionError if an option is invalid."""
    table: SlurmTable | None = site_options.get(NAME)
    if table is None or table.pilots is None:
        refuse_unknown(
            site_options, (NAME,), "does not work at a Slurm site, because Slurm decides when each job starts"
        )
    if table is None:
        raise OptionError(NAME, "is missing; expected a table with at least partition and folder (docs/slurm.md)")
    check_table(table)
    pilots = None if table.pilots is None else read_pilots(table.pilots, nodes, site_options, usual)
    return BatchPolicy(most_asked=table.most_asked, pilots=pilots, chunks=table.chunks)


def check_table(table: SlurmTable) -> None:
    """Raise OptionError if a value in the table is invalid; paths and accounts are not looked up."""
    settings = table.settings
    check_options("user_options", table.user_options, tuple(OVER_REST) if settings.submits_over_rest else ALLOWED)
    users = table.batch_users
    for user, to in users.items():
        if not (user and user.isprintable() and re.fullmatch(r"[\w.-]*", to.account)):
            problem = f"{user!r} = {to.account!r} is invalid; expected USER = 'ACCOUNT', '' for the site's account"
            raise OptionError("users", problem)
        _check_runs_as(user, to.runs_as, table.submit)
    if table.submit != "self" and not users:
        right = "list the users and their accounts, e.g. anna = { runs_as = 'anna' }"
        raise OptionError("users", f"is missing, but submit = {table.submit!r} needs the users' accounts; {right}")
    if table.submit != "self" and table.pilots is not None:
        right = "omit one of the two"
        raise OptionError("pilots", f"run as one account, but jobs with submit = {table.submit!r} do not; {right}")
    if table.pilots is not None and (table.user_options or any(batch_user.account for batch_user in users.values())):
        name = "user_options" if table.user_options else "users"
        right = "omit them" if table.user_options else "use '' for the site's account"
        raise OptionError(name, f"cannot apply to a pilot, which is requested before its jobs are known; {right}")
    if not table.folder.startswith("/"):
        raise OptionError("folder", f"is {table.folder!r}; expected an absolute path, the same on all nodes")
    for name, least in (("poll_s", 0.1), ("lease_s", 10.0)):
        if not least <= getattr(table, name) <= 86_400:
            raise OptionError(name, f"is {getattr(table, name):g}; expected {least:g} to 86400 seconds")


def _check_runs_as(user: str, runs_as: str, submit: str) -> None:
    """Raise OptionError if a user's ``runs_as`` does not fit ``submit`` or is not a valid account name."""
    if submit == "self" and runs_as:
        problem = f"{user!r} has runs_as = {runs_as!r}, but jobs run as the site's account; set submit = 'sudo', 'uid'"
        raise OptionError("users", f"{problem} or 'rest', or omit runs_as")
    if submit != "self" and not re.fullmatch(r"[A-Za-z_][\w.-]*", runs_as, re.ASCII):
        problem = f"{user!r} has runs_as = {runs_as!r}; submit = {submit!r} needs a Unix account"
        raise OptionError("users", problem)
    if runs_as == "root":
        raise OptionError("users", f"{user!r} has runs_as = 'root'; expected an ordinary account")


def read_pilots(table: PilotTable, nodes: int, site_options: Options, usual: Options) -> PilotRules:
    """Return the rules for pilots; the options of their discipline come from the site's options."""
    for name, hours in (("hours", table.hours), ("job_hours", table.job_hours), ("idle_s", table.idle_s / 3600)):
        if not 0 <= hours <= 744:
            raise OptionError(name, f"is {getattr(table, name):g}; expected 0 to 31 days")
    if table.keep > nodes:
        raise OptionError("keep", f"is {table.keep}; expected at most {nodes}, the nodes of the site")
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
    """Create a site's node source, which requests either an allocation for each job or pilots."""
    return (OneAllocationPerJob if policy.pilots is None else Pilots)(nodes, policy, week)


def discipline_inside(table: SlurmTable | None) -> str:
    """Return the name of the discipline that schedules jobs in a site's pilots; `NAME` if the site has no pilots."""
    return NAME if table is None or table.pilots is None else table.pilots.discipline


def launcher_problems(table: SlurmTable | None, kind: str, trust: str) -> Iterator[tuple[str, str]]:
    """Yield the problems in a Slurm site's table ``launcher``, each as its key and a description."""
    if kind == "user":
        yield (
            "kind",
            "is 'user', but Slurm's nodes have no launcher; set it to 'self', and see submit in docs/slurm.md",
        )
    if table is not None and table.users and trust == "all":
        yield "trust", "is 'all', but the table users of slurm lists the accepted users; omit one of the two"


ENTRY = Entry(
    name=NAME,
    about="the nodes belong to a Slurm cluster, which decides when each job starts",
    make=AskedJobs,
    read=read_policy,
    traits_by=traits_of,
    table=SlurmTable,
    table_key=NAME,
    lender=Lender(
        make=make_source,
        policy_inside=lambda policy: policy.inside,
        discipline_inside=discipline_inside,
        launcher_problems=launcher_problems,
    ),
)
