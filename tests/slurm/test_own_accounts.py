"""A Slurm cluster whose jobs run as their users: by sudo, by root, and by the users' own tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridweave.errors import InputError
from gridweave.slurm.cluster.slurmrestd import token_problem
from gridweave.slurm.service.folder import SharedFolder
from gridweave.slurm.service.site import check_plan
from gridweave.slurm.system import BatchPlan
from support.accounts_site import USERS, plan_of
from support.machine import PATIENCE_S, ROOT, have_users, reachable
from support.slurm import SlurmCluster, running_cluster, running_slurmrestd, with_tokens

pytestmark = pytest.mark.slow

SITE, REST = "gw-test-site", "gw-test-rest"
SUDOERS = """\
Defaults:{site} env_keep += "SLURM_CONF"
{site} ALL = ({users}) NOPASSWD: {sbatch}, {scancel}
"""
"""As docs/slurm.md gives it, with the paths of the commands."""


class Ground:
    """A cluster that knows tokens, two users, a site that is neither of them nor root, and a folder for all of it."""

    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} "$@"\n')
        self.python.chmod(0o755)

    def shared(self, name: str, owner: str) -> Path:
        """Return a folder of a site's account, with one for each user, as an operator makes it."""
        home = self.folder / name
        home.mkdir()
        shutil.chown(home, owner, owner)
        install = ["install", "-d", "-o", owner, "-g", owner, "-m", "711"]
        subprocess.run([*install, home / "shared", home / "shared" / "users"], check=True)
        for user in USERS.values():
            own = ["install", "-d", "-o", user, "-g", owner, "-m", "2750", home / "shared" / "users" / user]
            subprocess.run(own, check=True)
        return home

    def tokens(self, home: Path, owner: str, lifespan_s: int = 3600) -> Path:
        """Return a folder with a token of each user, and of the account of the site itself."""
        folder = home / "tokens"
        folder.mkdir(exist_ok=True)
        for user in (*USERS.values(), owner):
            path = folder / f"{user}.jwt"
            path.write_text(self.cluster.run("scontrol", "token", f"username={user}", f"lifespan={lifespan_s}"))
            path.chmod(0o600)
            shutil.chown(path, owner, owner)
        return folder

    def play(self, home: Path, account: str, **slurm: object) -> dict[str, list[str]]:
        """Play `accounts_site` as an account, and return what it tells."""
        conf = str(self.cluster.conf)
        paths = {"folder": str(home / "shared"), "journal": str(home), "python": str(self.python)}
        given = json.dumps({"slurm": {"conf": conf, **slurm}, **paths})
        path = f"{Path(shutil.which('sbatch') or '').parent}:/usr/bin:/bin"
        names = {"PATH": path, "HOME": str(home), "TMPDIR": str(home), "SECRET": "GOT", "SLURM_CONF": conf}
        names |= {"PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"}
        as_account = ["setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups", "--"]
        command = reachable(
            [*as_account, sys.executable, "-P", str(ROOT / "tests" / "support" / "accounts_site.py"), given]
        )
        done = subprocess.run(
            command, env=names, cwd="/", capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
        return told

    def plan(self, **slurm: object) -> BatchPlan:
        """Return the plan of a site of root's on the cluster."""
        return plan_of({"conf": str(self.cluster.conf), **slurm}, str(self.folder / "checked"), "")

    def problem(self, **slurm: object) -> str:
        """Return what is wrong with a cluster as it is set up, in one line."""
        with pytest.raises(InputError) as found:
            asyncio.run(check_plan(self.plan(**slurm), 1))
        assert "\n" not in str(found.value)
        return str(found.value)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """Return a cluster and its users; only root can make these."""
    with have_users(*USERS.values(), SITE, REST), contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="gridweave-slurm-", dir="/run"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        cluster = running_cluster(folder / "cluster", "acct", 4, more=with_tokens(folder))
        yield Ground(folder, stack.enter_context(cluster))


@contextlib.contextmanager
def slurmrestd(ground: Ground) -> Iterator[str]:
    """Yield where a slurmrestd listens."""
    with running_slurmrestd(ground.cluster, REST) as socket:
        yield f"unix:{socket}"


@contextlib.contextmanager
def sudoers(*users: str) -> Iterator[None]:
    """Have the site's account submit as these users."""
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not at hand (Debian, as root: apt-get install sudo)")
    path = Path("/etc/sudoers.d/gridweave-test")
    commands = {each: shutil.which(each) for each in ("sbatch", "scancel")}
    path.write_text(SUDOERS.format(site=SITE, users=", ".join(users), **commands))
    path.chmod(0o440)
    try:
        yield
    finally:
        path.unlink()


def came_out_well(told: dict[str, list[str]]) -> None:
    """Check what a site tells whose jobs run as their users."""
    anna = USERS["anna"]
    home = f"{anna}\n{anna}\n/\n"
    assert told["wide"] == ["finished", "", home, home]
    outcome, said = told["attack"]
    assert (outcome, "GOT" in said) == ("finished", False), said
    assert said == f"as {USERS['bert']} in 0027, sees 1\nasked\n"
    assert told["left"] == [USERS["bert"]]
    assert (told["carl"], told["long"], told["private"]) == (-1, "cancelled", "private\n")


def test_jobs_run_as_their_users_by_sudo(ground: Ground) -> None:
    """A site of an ordinary account submits, reads and cancels; users get nothing of each other, nor of the site."""
    folder = str(Path(shutil.which("sbatch") or "").parent)
    with sudoers(*USERS.values()):
        came_out_well(ground.play(ground.shared("sudo", SITE), SITE, submit="sudo", bin=folder))


def test_jobs_run_as_their_users_by_root(ground: Ground) -> None:
    """The same for a site that is root, which makes the users' folders itself."""
    home = ground.folder / "uid"
    home.mkdir()
    came_out_well(ground.play(home, "root", submit="uid"))


def test_jobs_run_as_their_users_by_their_tokens(ground: Ground) -> None:
    """The same by slurmrestd, which knows the users by tokens, and the site by its own: Slurm has no command there."""
    home = ground.shared("tokens", SITE)
    with slurmrestd(ground) as where:
        over = {"rest": where, "tokens": str(ground.tokens(home, SITE)), "bin": str(home)}
        came_out_well(ground.play(home, SITE, submit="rest", access="rest", **over))


def test_what_is_wrong_is_told_at_the_start(ground: Ground) -> None:
    """One line each: no slurmrestd, no token, one that has ended, is another's, or is open to others."""
    anna = USERS["anna"]
    tokens = ground.tokens(ground.folder, "root")
    path = tokens / f"{anna}.jwt"
    away = {"submit": "rest", "rest": f"unix:{ground.folder}/none", "tokens": str(tokens)}
    assert ground.problem(**away) == f"rest: slurmrestd at {away['rest']} does not answer: No such file or directory"
    with slurmrestd(ground) as where:
        rest = away | {"rest": where}
        asyncio.run(check_plan(ground.plan(**rest), 1))
        path.write_text(path.read_text().strip() + "x")
        # 24.11 says that it is the token; 22.05 cannot tell that from a slurmctld that is down.
        assert f"slurmrestd at {where} rejects the token of {anna}" in ground.problem(**rest)
        path.write_text((tokens / f"{USERS['bert']}.jwt").read_text())
        assert f"the token of {anna} belongs to '{USERS['bert']}'; scontrol" in ground.problem(**rest)
        path.chmod(0o644)
        assert ground.problem(**rest) == f"{path} can be read by other users; chmod 600"
        path.unlink()
        said = f"the token of {anna} cannot be read: {path}: No such file or directory; scontrol token username={anna}"
        assert said in ground.problem(**rest)
        printed = {"submit": "rest", "rest": where, "token_command": ["scontrol", "token", "username={account}"]}
        asyncio.run(check_plan(ground.plan(**printed), 1))
        old = ground.cluster.run("scontrol", "token", f"username={anna}", "lifespan=1").strip()
        given = printed | {"token_command": ["echo", old]}
        ground.cluster.wait(
            lambda: token_problem(old.removeprefix("SLURM_JWT="), anna, time.time()) is not None, "its end"
        )
        assert f"the token of {anna} expired at 20" in ground.problem(**given)


def test_a_site_that_may_not_submit_as_a_user(ground: Ground) -> None:
    """Without the line for sudo, and with --uid though it is not root, one line says what would be right."""
    home = ground.shared("denied", SITE)
    anna = USERS["anna"]
    said = f"runs_as {anna}: sudo does not allow the site to run sbatch as {anna}: a password is required;"
    with sudoers(USERS["bert"]), pytest.raises(AssertionError, match=said):
        ground.play(home, SITE, submit="sudo")
    with pytest.raises(AssertionError, match="submit: is 'uid', but only root may use sbatch --uid; run the site as"):
        ground.play(home, SITE, submit="uid")


CHECK = """\
import asyncio, sys
from gridweave.errors import InputError
from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.cluster.settings import SlurmSettings
async def notes(**more):
    return await Slurm(SlurmSettings(partition="main", conf=sys.argv[1], **more)).check()
print(*asyncio.run(notes()))
try:
    asyncio.run(notes(submit="sudo"))
except InputError as error:
    print(error)
"""


def test_jobs_of_others_that_are_hidden(ground: Ground) -> None:
    """A site that submits all as itself says so at the start; one that has to see its users' jobs does not start."""
    conf = ground.cluster.conf
    plain = conf.read_text()
    as_site = ["setpriv", f"--reuid={SITE}", f"--regid={SITE}", "--clear-groups", "--", sys.executable, "-P", "-c"]

    def told() -> list[str]:
        names = {"PATH": "/usr/bin:/bin", "HOME": "/", "PYTHONPATH": f"{ROOT}/src"}
        command = reachable([*as_site, CHECK, str(conf)])
        return subprocess.run(command, env=names, cwd="/", capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )

    assert told() == ["", ""]
    conf.write_text(plain + "PrivateData=jobs\n")
    try:
        ground.cluster.run("scontrol", "reconfigure")
        note, refusal, _ = told()
    finally:
        conf.write_text(plain)
        ground.cluster.run("scontrol", "reconfigure")
    hidden = f"PrivateData=jobs in slurm.conf hides the jobs of other users from {SITE}"
    assert note.startswith(f"{hidden}: its forecasts of free nodes only consider its own jobs; make")
    assert refusal.startswith(f"{hidden}, so it would treat the jobs of its users as lost; make {SITE} an")


def test_accounts_that_nothing_runs_as(ground: Ground) -> None:
    """Root, the site itself, one that is not there, one whose folder is not theirs, or is open to others."""
    shared = SharedFolder(ground.folder / "folders", others=True)
    anna = USERS["anna"]
    said = [shared.problem_of(name) or "" for name in ("root", "nobody-at-all", anna)]
    assert said[0] == "runs_as root: is mapped to 'root', which is root here; map it to an ordinary account"
    assert said[1].startswith("runs_as nobody-at-all: this machine has no Unix account")
    assert said[2] == ""
    base = shared.base(anna)
    assert (base.owner(), stat.S_IMODE(base.stat().st_mode)) == (anna, 0o2750)
    right = f"as root: install -d -o {anna} -g 0 -m 2750 {base}"
    base.chmod(0o2755)
    assert (shared.problem_of(anna) or "").endswith(
        f"must be a folder of this account that the group of the site can read; {right}"
    )
    shutil.rmtree(base)
    base.symlink_to("/etc")
    assert (shared.problem_of(anna) or "").endswith(right)
    subprocess.run(["usermod", "-a", "-G", "root", anna], check=True)
    try:
        assert "is in group 0 of the site, so it could read jobs of other users" in (shared.problem_of(anna) or "")
    finally:
        subprocess.run(["gpasswd", "-d", anna, "root"], check=True, capture_output=True)
