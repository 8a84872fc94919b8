"""Sites that are Slurm clusters in GRID.toml, in scenarios and in simulations: what is fine, and what is told."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gridweave import simulate
from gridweave.errors import OptionError, ScenarioError
from gridweave.grid.config.reading import grid_of_text
from gridweave.grid.service.cluster import plan_of
from gridweave.site.disciplines.dictionary import deciding, entry_named
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.launch import OutputLimits
from gridweave.site.policy import SitePolicy
from gridweave.slurm.policy import BatchPolicy, PilotRules
from gridweave.slurm.service.actor import BatchSiteActor
from gridweave.slurm.system import BatchUser
from support.builders import random_workload

PLAIN = """\
[[sites]]
name = "cluster"
nodes = 60
discipline = "slurm"
[sites.slurm]
partition = "main"
folder = "/shared/gridweave"
account = "physics"
options = ["constraint=fast"]
"""
OF_USERS = """\
user_options = ["gres", "nice"]
users = { anna = "chemistry", bert = "" }
"""
SITE = PLAIN + OF_USERS
LIMITED = '[grid]\ncontrol = "limited"\n'


def test_how_long_the_output_of_a_slurm_cluster_is_kept() -> None:
    """As long as that of machines."""
    limits = "output_days = 7\noutput_bytes = 1000\n"
    for more, wanted in (("", OutputLimits()), (limits, OutputLimits(days=7, bytes_per_user=1000))):
        read = grid_of_text(SITE + LIMITED + more, "GRID.toml", "")
        (site,) = plan_of(read, folder="/f", namespace="n", labelled=False, first_port=21_000, secret=b"s").sites
        assert site.batch is not None
        assert site.batch.rules.output == wanted


def test_the_plan_of_a_slurm_cluster() -> None:
    """Its machines are the places of single nodes, and what starts its actor can be sent there."""
    read = grid_of_text(SITE + LIMITED, "GRID.toml", "")
    plan = plan_of(read, folder="/f", namespace="n", labelled=False, first_port=21_000, secret=b"s")
    (site,) = plan.sites
    assert site.policy == BatchPolicy()
    batch = site.batch
    assert batch is not None
    assert (batch.folder, batch.settings.account, batch.settings.options) == (
        "/shared/gridweave/cluster",
        "physics",
        ("constraint=fast",),
    )
    taken = batch.rules.users
    assert [taken.refusal(user, ["nice=3", "gres=gpu:1"]) for user in ("anna", "bert")] == [None, None]
    assert taken.refusal("carl") == "it has no account for 'carl'; ask its operator to add one"
    assert batch.users == {"anna": BatchUser(account="chemistry"), "bert": BatchUser()}
    machines = plan.site_settings(0).machines
    assert [(each.name, each.nodes, each.ports) for each in machines[:2]] == [
        ("n0", 1, (21_000, 21_004)),
        ("n1", 1, (21_004, 21_008)),
    ]
    assert machines[50].ports == machines[0].ports
    assert pickle.loads(pickle.dumps((BatchSiteActor, batch))) == (BatchSiteActor, batch), "as Ray carries it"


OWN = (
    PLAIN
    + """\
submit = "sudo"
[sites.slurm.users]
anna = { account = "chemistry", runs_as = "anna1" }
bert = { runs_as = "bert" }
"""
)
REST = OWN.replace('"sudo"', '"rest"\nrest = "unix:/run/slurmrestd"\ntokens = "/etc/tokens"')


OVER_REST = (
    PLAIN
    + """\
user_options = ["nice"]
access = "rest"
rest = "https://head.example.org:6820/slurm"
ca = "/etc/ca.pem"
tokens = "/etc/tokens"
"""
)


def test_a_site_that_looks_over_slurmrestd() -> None:
    """It submits so, too, as itself."""
    read = grid_of_text(OVER_REST + LIMITED, "GRID.toml", "")
    (site,) = plan_of(read, folder="/f", namespace="n", labelled=False, first_port=21_000, secret=b"s").sites
    assert site.batch is not None
    slurm = site.batch.settings
    assert (slurm.access, slurm.ca, slurm.submits_over_rest) == ("rest", "/etc/ca.pem", True)
    assert slurm.rest == "https://head.example.org:6820/slurm"


def test_jobs_that_run_as_their_users() -> None:
    """By a table of the users, and who submits for them."""
    for text, submit in ((OWN, "sudo"), (REST, "rest"), (OWN.replace("sudo", "uid"), "uid")):
        read = grid_of_text(text + LIMITED, "GRID.toml", "")
        (site,) = plan_of(read, folder="/f", namespace="n", labelled=False, first_port=21_000, secret=b"s").sites
        assert site.batch is not None
        assert site.batch.settings.submit == submit
        assert site.batch.users == {
            "anna": BatchUser(account="chemistry", runs_as="anna1"),
            "bert": BatchUser(runs_as="bert"),
        }
        assert site.batch.rules.users.names == ("anna", "bert")


PILOTS = PLAIN.replace("[sites.slurm]", 'order = "sjf"\n[sites.slurm]\npilots = { hours = 2, job_hours = 0.5 }')


def test_with_pilots_a_grid_has_full_control() -> None:
    """The site decides what starts in them, by the order that it was given."""
    read = grid_of_text(PILOTS, "GRID.toml", "")
    plan = plan_of(read, folder="/f", namespace="n", labelled=False, first_port=21_000, secret=b"s")
    (site,) = plan.sites
    rules = PilotRules(policy=SitePolicy(order="sjf"), length_ms=7_200_000, job_ms=1_800_000)
    assert site.policy == BatchPolicy(pilots=rules)
    assert site.policy.label == "slurm pilots, sjf easy"
    read = grid_of_text(PILOTS.replace('order = "sjf"', 'backfill = "conservative"'), "GRID.toml", "")
    (site,) = plan_of(read, folder="/f", namespace="n", labelled=False, first_port=21_000, secret=b"s").sites
    assert site.policy.label == "slurm pilots, fcfs conservative"


def test_another_discipline_decides_in_pilots() -> None:
    """It has the options of the site, and those of its own table."""
    text = PILOTS.replace('order = "sjf"', 'order = "sjf"\ngang = { mpl = 2, slice_ms = 60_000 }')
    read = grid_of_text(text.replace("{ hours", '{ discipline = "gang", hours'), "GRID.toml", "")
    (site,) = plan_of(read, folder="/f", namespace="n", labelled=False, first_port=21_000, secret=b"s").sites
    policy = GangPolicy(mpl=2, slice_ms=60_000, order="sjf")
    assert site.policy == BatchPolicy(pilots=PilotRules(policy=policy, length_ms=7_200_000, job_ms=1_800_000))
    assert deciding(site.policy) == (policy, entry_named("gang").traits_of(policy))
    assert site.policy.label == f"slurm pilots, {policy.label}"


@pytest.mark.parametrize(("text", "said"), [
    (PILOTS.replace("{ hours", '{ discipline = "optimal", hours'), "discipline: 'optimal' does not work with pilots"),
    (PILOTS.replace("{ hours", '{ discipline = "slurm", hours'), "discipline: 'slurm' does not work with pilots"),
    (PILOTS.replace("{ hours", '{ discipline = "gan", hours'), "discipline: 'gan' is not known; one of dynp,"),
    (PILOTS.replace("{ hours", '{ discipline = "gang", hours'), "hours: is too small; expected at least 5, because"),
    (PILOTS.replace("[sites.slurm]", "gang = { mpl = 2 }\n[sites.slurm]"), "gang: is for the discipline gang, and"),
    (SITE, "which decides when each job starts; give control = 'limited' or 'none' in [grid]"),
    (SITE.replace('"main"', '"a b"') + LIMITED, "partition: is 'a b'; expected letters"),
    (SITE.replace('"/shared', '"shared') + LIMITED, "folder: is 'shared/gridweave'; expected an absolute path"),
    (SITE.replace("constraint", "wrap") + LIMITED, "options: 'wrap' is not an option that is passed on to sbatch"),
    (SITE.replace('"nice"', '"partition"') + LIMITED, "user_options: 'partition' is not passed on to sbatch"),
    (SITE.replace("constraint=fast", "partition=gpu") + LIMITED,
     "options: 'partition' is not passed on to sbatch; the key partition selects the nodes"),
    (SITE.replace("constraint=fast", "--account=physics") + LIMITED,
     "options: 'account' is not passed on to sbatch; the key account sets it, or users for each user"),
    (SITE.replace("constraint=fast", "clusters=b") + LIMITED,
     "options: 'clusters' is not passed on to sbatch; the key conf selects the cluster"),
    (SITE.replace('"chemistry"', '"a b"') + LIMITED, "users: 'anna' = 'a b' is invalid; expected USER = 'ACCOUNT', ''"),
    (SITE + "[sites.launcher]\ntrust = 'all'\n" + LIMITED, "is 'all', but the table users of slurm lists"),
    (PILOTS + OF_USERS, "user_options: cannot apply to a pilot, which is requested before its jobs are known; omit"),
    (PILOTS + OF_USERS.partition("\n")[2], "users: cannot apply to a pilot, which is requested before"),
    (SITE + "poll_s = 0\n" + LIMITED, "poll_s: is 0; expected 0.1 to 86400 seconds"),
    (SITE + "most_asked = 0\n" + LIMITED, "most_asked: is 0; expected at least 1"),
    (SITE.partition("[sites.slurm]")[0] + LIMITED, "slurm: is missing; expected a table with at least partition"),
    (SITE.replace("[sites.slurm]", 'order = "sjf"\n[sites.slurm]') + LIMITED, "order: 'sjf' does not work at a Slurm"),
    (PILOTS.replace("{ hours = 2,", "{ hours = 0.5,"), "hours: is too small; expected at least twice job_hours"),
    (PILOTS.replace("{ hours = 2,", "{ hours = 1000,"), "hours: is 1000; expected 0 to 31 days"),
    (PILOTS.replace("{ hours = 2,", "{ keep = 61,"), "keep: is 61; expected at most 60"),
    (PILOTS.replace('"sjf"', '"best"'), "order: 'best' is not known"),
    (PILOTS.replace('order = "sjf"', 'backfill = "best"'), "backfill of a queue site: 'best' is not known"),
    (SITE + "[sites.launcher]\nkind = 'user'\nsocket = '/s'\n" + LIMITED, "set it to 'self'"),
    (OWN.replace('"anna1"', '"root"') + LIMITED, "users: 'anna' has runs_as = 'root'; expected an ordinary"),
    (OWN.replace('"anna1"', '"-u root"') + LIMITED, "has runs_as = '-u root'; submit = 'sudo' needs a Unix"),
    (OWN.replace('"anna1"', '"#0"') + LIMITED, "has runs_as = '#0'; submit = 'sudo' needs a Unix account"),
    (OWN.replace(', runs_as = "anna1"', "") + LIMITED, "'anna' has runs_as = ''; submit = 'sudo' needs a Unix"),
    (OWN.replace('submit = "sudo"', "") + LIMITED, "but jobs run as the site's account; set submit = 'sudo'"),
    (OWN.partition("[sites.slurm.users]")[0] + LIMITED, "users: is missing, but submit = 'sudo' needs"),
    (OWN.replace('submit', 'pilots = {}\nsubmit') + LIMITED, "pilots: run as one account, but jobs with submit"),
    (OWN.replace('"sudo"', '"su"') + LIMITED, "submit: is 'su'; expected one of self, sudo, uid, rest"),
    (REST.replace("unix:/run", "http://far") + LIMITED, "rest: is 'http://far/slurmrestd'; expected slurmrestd's"),
    (REST.replace('tokens =', '# tokens =') + LIMITED, "tokens: needs a folder, or token_command a command"),
    (REST.replace('constraint=', 'nodelist=') + LIMITED, "options: 'nodelist' is not an option that is"),
    (OWN.replace('submit', 'rest = "unix:/x"\nsubmit') + LIMITED, "rest: needs submit = 'rest' or access = 'rest'"),
    (OVER_REST.replace('access = "rest"', 'access = "best"') + LIMITED, "access: is 'best'; expected one of commands"),
    (OVER_REST.replace("https://head", "unix:/run/head") + LIMITED, "ca: needs an https address, but rest is 'unix:"),
    (OVER_REST.replace("constraint=", "nodelist=") + LIMITED, "options: 'nodelist' is not an option that is"),
    (OVER_REST.replace('"nice"', '"gres"') + LIMITED, "user_options: 'gres' is not an option that is passed on to"),
    (SITE.replace('"slurm"', '"queue"') + LIMITED, "slurm: is for the discipline slurm, and this site has 'queue'"),
])  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(text: str, said: str) -> None:
    """One line for each, with where it stands."""
    with pytest.raises(ScenarioError) as refused:
        grid_of_text(text, "GRID.toml", "")
    (problem,) = map(str, refused.value.problems)
    assert said in problem
    assert problem.startswith("GRID.toml:")
    assert "\n" not in problem


def test_a_table_that_lacks_keys_is_not_called_missing() -> None:
    """What a table of Slurm lacks is told, and nothing that follows from that."""
    text = SITE.replace('partition = "main"\n', "")
    assert text != SITE
    with pytest.raises(ScenarioError) as refused:
        grid_of_text(text + LIMITED, "GRID.toml", "")
    (problem,) = map(str, refused.value.problems)
    assert problem.endswith("sites.slurm.partition: is missing")


def test_it_is_not_simulated() -> None:
    """Nobody is there in a simulation who would give nodes."""
    with pytest.raises(OptionError, match=r"discipline: 'slurm' works only on live sites: the nodes belong to a Slurm"):
        simulate(random_workload(np.random.default_rng(1), 4, coarse=True), 4, BatchPolicy())
