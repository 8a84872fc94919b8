"""Map a job's user to a Unix account for the launcher, using a table or the account with the same name."""

from __future__ import annotations

import json
import os
import pwd
import resource
import stat
import subprocess
import sys
from typing import Annotated, Any, NamedTuple

import msgspec

from gridweave.errors import GridweaveError

LEAST_UID = 1000
"""The smallest uid of ordinary users; an account with a smaller uid is used only if the table lists it."""


MOST_LISTED = 32_000
"""The list of user names is sent to the service only if it is shorter than this [characters of JSON]."""


class DeniedError(GridweaveError):
    """The launcher denied a request; the message is one line."""


class LauncherFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the launcher's configuration file (docs/launchers.md)."""

    service: str
    socket: str
    cgroup: str = ""
    users: dict[str, str] = {}
    same_name: bool = False
    private_tmp: bool = True
    limits: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}


class Settings(NamedTuple):
    """The launcher's configuration file, the service's account, and the control groups for jobs."""

    path: str
    file: LauncherFile
    service: pwd.struct_passwd
    groups: dict[str, str]

    @property
    def visible_settings(self) -> dict[str, Any]:
        """The settings that the service may see: its own account and, if possible, the accepted users.

        The users cannot be listed if they are matched by name, or if the table is too long for one packet.
        """
        users = sorted(self.file.users)
        is_listed = not self.file.same_name and len(json.dumps(users)) < MOST_LISTED
        return {"service": self.service.pw_name, "users": users if is_listed else [], "anyone": not is_listed}

    def account(self, user: str) -> pwd.struct_passwd:
        """Return a job user's account, from the table or with the same name; raise DeniedError if it is not allowed."""
        name = self.file.users.get(user) or (user if self.file.same_name else "")
        if not name:
            raise DeniedError(f"user {user!r} has no Unix account on this machine; add one to [users] in {self.path}")
        account = ordinary_account(name, f"user {user!r}", self.service.pw_uid)
        if user not in self.file.users and account.pw_uid < LEAST_UID:
            raise DeniedError(f"user {user!r}: {name!r} is a system account; to use it anyway, add it to [users]")
        return account


def account_of(name: str, whose: str) -> pwd.struct_passwd:
    """Look up a Unix account on this machine; raise DeniedError if it does not exist."""
    try:
        return pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise DeniedError(f"{whose}: this machine has no Unix account {name!r}; create it, or name another") from None


def ordinary_account(name: str, whose: str, service_uid: int) -> pwd.struct_passwd:
    """Look up a Unix account on this machine; raise DeniedError for root and for the service's own account."""
    account = account_of(name, whose)
    if account.pw_uid == 0 or account.pw_gid == 0:
        raise DeniedError(f"{whose}: is mapped to {name!r}, which is root here; map it to an ordinary account")
    if account.pw_uid == service_uid:
        raise DeniedError(f"{whose}: is mapped to {name!r}, the account of the service; map it to another account")
    return account


def read_settings(path: str) -> Settings:
    """Read the launcher's configuration, and create its control groups in a subprocess before the first request."""
    with open(path, "rb") as opened:
        _check_roots(path, os.fstat(opened.fileno()))
        try:
            file = msgspec.toml.decode(opened.read(), type=LauncherFile)
        except msgspec.DecodeError as error:
            raise DeniedError(f"{path}: {error}; docs/launchers.md describes this file") from None
    for user, name in file.users.items():
        if account_of(name, f"{path}: users.{user}").pw_uid == 0:
            raise DeniedError(f"{path}: users.{user} is {name!r}, which is root; map it to an ordinary account")
    for limit in file.limits:
        if not hasattr(resource, f"RLIMIT_{limit.upper()}"):
            raise DeniedError(f"{path}: limits.{limit} is not a limit of setrlimit(2); expected e.g. nofile")
    service, groups = account_of(file.service, f"{path}: service"), {}
    if file.cgroup:
        command = [sys.executable, "-P", "-m", "gridweave.site.machine.cgroups", file.cgroup]
        owner = [str(service.pw_uid), str(service.pw_gid)]
        groups = json.loads(subprocess.run([*command, *owner], stdout=subprocess.PIPE, check=True).stdout)
    return Settings(path, file, service, groups)


def _check_roots(path: str, file: os.stat_result) -> None:
    """Reject a file that anyone but root could have written or replaced."""
    folder = os.path.dirname(os.path.realpath(path))
    parents = [(path, file)]
    while True:
        parents.append((folder, os.stat(folder)))
        if folder == "/":
            break
        folder = os.path.dirname(folder)
    for name, status in parents:
        if status.st_uid != 0 or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
            raise DeniedError(f"{path}: {name} is writable by other users than root; chown root, chmod go-w")
