"""A Slurm cluster whose jobs run as their users: by sudo, by root, and by the users' own tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accounts_site import USERS, plan_of
from gridweave.errors import InputError
from gridweave.site.batch.plan import BatchPlan
from gridweave.site.batch.service.folder import SharedFolder
from gridweave.site.batch.service.site import check_plan
from gridweave.site.batch.slurm.rest import token_problem
from slurm_cluster import SlurmCluster, running_cluster
from unix_users import ROOT, have_users, reachable

pytestmark = pytest.mark.slow

SITE, REST = "gw-test-site", "gw-test-rest"
JWT = """\
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
"""
SUDOERS = """\
Defaults:{site} env_keep += "SLURM_CONF"
{site} ALL = ({users}) NOPASSWD: /usr/bin/sbatch, /usr/bin/scancel
"""
"""As docs/slurm.md gives it."""


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
        """Return a folder with a token of each user, for a site."""
        folder = home / "tokens"
        folder.mkdir(exist_ok=True)
        for user in USERS.values():
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
        names = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home), "SECRET": "GOT", "SLURM_CONF": conf}
        names |= {"PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"}
        as_account = ["setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups", "--"]
        command = reachable([*as_account, sys.executable, "-P", str(ROOT / "tests" / "accounts_site.py"), given])
        done = subprocess.run(command, env=names, cwd="/", capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        told: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
        return told

    def plan(self, **slurm: object) -> BatchPlan:
        """Return the plan of a site of root's on the cluster."""
        return plan_of({"conf": str(self.cluster.conf), **slurm}, str(self.folder / "checked"), "")

    def problem(self, **slurm: object) -> str:
        """Return what is wrong with a cluster as it is set up, in one line."""
        with pytest.raises(InputError) as found:
            asyncio.run(check_plan(self.plan(**slurm)))
        assert "\n" not in str(found.value)
        return str(found.value)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """Return a cluster and its users; only root can make these."""
    with have_users(*USERS.values(), SITE, REST), contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="gridweave-slurm-", dir="/run"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        (folder / "jwt.key").write_bytes(os.urandom(32))
        (folder / "jwt.key").chmod(0o600)
        more = JWT.format(folder=folder)
        yield Ground(folder, stack.enter_context(running_cluster(folder / "cluster", "acct", 4, more=more)))


@contextlib.contextmanager
def slurmrestd(ground: Ground) -> Iterator[str]:
    """Yield where a slurmrestd listens."""
    if shutil.which("slurmrestd", path="/usr/sbin") is None:
        pytest.skip("slurmrestd is not at hand (Debian, as root: apt-get install slurmrestd)")
    place = ground.folder / "rest"
    place.mkdir(exist_ok=True)
    shutil.chown(place, REST, REST)
    socket = place / "socket"
    as_rest = ["setpriv", f"--reuid={REST}", f"--regid={REST}", "--clear-groups", "--"]
    command = [*as_rest, "/usr/sbin/slurmrestd", "-a", "rest_auth/jwt", "-s", "openapi/v0.0.38", f"unix:{socket}"]
    with (ground.folder / "rest.log").open("wb") as log:
        names = {"PATH": "/usr/bin", "SLURM_CONF": str(ground.cluster.conf), "SLURM_JWT": "daemon"}
        daemon = subprocess.Popen(command, env=names, stdout=log, stderr=log)
    try:
        ground.cluster.wait(socket.exists, "slurmrestd")
        yield f"unix:{socket}"
    finally:
        daemon.terminate()
        daemon.wait()
        socket.unlink(missing_ok=True)


@contextlib.contextmanager
def sudoers(*users: str) -> Iterator[None]:
    """Have the site's account submit as these users."""
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not at hand (Debian, as root: apt-get install sudo)")
    path = Path("/etc/sudoers.d/gridweave-test")
    path.write_text(SUDOERS.format(site=SITE, users=", ".join(users)))
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
    with sudoers(*USERS.values()):
        came_out_well(ground.play(ground.shared("sudo", SITE), SITE, submit="sudo"))


def test_jobs_run_as_their_users_by_root(ground: Ground) -> None:
    """The same for a site that is root, which makes the users' folders itself."""
    home = ground.folder / "uid"
    home.mkdir()
    came_out_well(ground.play(home, "root", submit="uid"))


def test_jobs_run_as_their_users_by_their_tokens(ground: Ground) -> None:
    """The same by slurmrestd, which knows each user by a token."""
    home = ground.shared("tokens", SITE)
    with slurmrestd(ground) as where:
        tokens = ground.tokens(home, SITE)
        came_out_well(ground.play(home, SITE, submit="rest", rest=where, tokens=str(tokens)))


def test_what_is_wrong_is_told_at_the_start(ground: Ground) -> None:
    """One line each: no slurmrestd, no token, one that has ended, is another's, or is open to others."""
    anna = USERS["anna"]
    tokens = ground.tokens(ground.folder, "root")
    path = tokens / f"{anna}.jwt"
    away = {"submit": "rest", "rest": f"unix:{ground.folder}/none", "tokens": str(tokens)}
    assert ground.problem(**away) == f"rest: slurmrestd at {away['rest']} does not answer: No such file or directory"
    with slurmrestd(ground) as where:
        rest = away | {"rest": where}
        asyncio.run(check_plan(ground.plan(**rest)))
        path.write_text(path.read_text().strip() + "x")
        assert f"slurmrestd does not take the token of {anna}: " in ground.problem(**rest)
        path.write_text((tokens / f"{USERS['bert']}.jwt").read_text())
        assert f"the token of {anna} is one of '{USERS['bert']}'; scontrol" in ground.problem(**rest)
        path.chmod(0o644)
        assert ground.problem(**rest) == f"{path} can be read by others than the site; chmod 600"
        path.unlink()
        said = f"there is no token for {anna}: {path}: No such file or directory; scontrol token username={anna} prints"
        assert said in ground.problem(**rest)
        printed = {"submit": "rest", "rest": where, "token_command": ["scontrol", "token", "username={account}"]}
        asyncio.run(check_plan(ground.plan(**printed)))
        old = ground.cluster.run("scontrol", "token", f"username={anna}", "lifespan=1").strip()
        given = printed | {"token_command": ["echo", old]}
        ground.cluster.wait(
            lambda: token_problem(old.removeprefix("SLURM_JWT="), anna, time.time()) is not None, "its end"
        )
        assert f"the token of {anna} ended at 20" in ground.problem(**given)


def test_a_site_that_may_not_submit_as_a_user(ground: Ground) -> None:
    """Without the line for sudo, and with --uid though it is not root, one line says what would be right."""
    home = ground.shared("denied", SITE)
    said = f"runs_as {USERS['anna']}: sudo does not let the site run sbatch as {USERS['anna']}: a password is required;"
    with sudoers(USERS["bert"]), pytest.raises(AssertionError, match=said):
        ground.play(home, SITE, submit="sudo")
    with pytest.raises(
        AssertionError, match="submit: is 'uid', and sbatch takes --uid from root alone; run the site as"
    ):
        ground.play(home, SITE, submit="uid")


def test_accounts_that_nothing_runs_as(ground: Ground) -> None:
    """Root, the site itself, one that is not there, one whose folder is not theirs, or is open to others."""
    shared = SharedFolder(ground.folder / "folders", others=True)
    anna = USERS["anna"]
    said = [shared.problem_of(name) or "" for name in ("root", "nobody-at-all", anna)]
    assert said[0] == "runs_as root: is mapped to 'root', who is root here; map an ordinary Unix user"
    assert said[1].startswith("runs_as nobody-at-all: this machine has no Unix user")
    assert said[2] == ""
    base = shared.base(anna)
    assert (base.owner(), stat.S_IMODE(base.stat().st_mode)) == (anna, 0o2750)
    right = f"as root: install -d -o {anna} -g 0 -m 2750 {base}"
    base.chmod(0o2755)
    assert (shared.problem_of(anna) or "").endswith(
        f"must be a folder of theirs that the group of the site reads; {right}"
    )
    shutil.rmtree(base)
    base.symlink_to("/etc")
    assert (shared.problem_of(anna) or "").endswith(right)
    subprocess.run(["usermod", "-a", "-G", "root", anna], check=True)
    try:
        assert "is in group 0 of the site, and could read the jobs of others" in (shared.problem_of(anna) or "")
    finally:
        subprocess.run(["gpasswd", "-d", anna, "root"], check=True, capture_output=True)
