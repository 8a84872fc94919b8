"""Create and remove Unix users for a test, and let them run Python from a folder that is closed to them."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def have_users(*names: str) -> Iterator[None]:
    """Create Unix users for the duration of the block; skip the test if this is not root."""
    if os.getuid() != 0:
        pytest.skip("attacks by jobs are skipped: only root can run jobs as other users")
    made = []
    try:
        for name in names:
            with contextlib.suppress(KeyError):
                pwd.getpwnam(name)
                continue
            subprocess.run(["useradd", "--no-create-home", "--home-dir", "/", name], check=True)
            made.append(name)
        yield
    finally:
        for name in made:
            subprocess.run(["userdel", name], check=False, capture_output=True)


def reachable(command: list[str]) -> list[str]:
    """Wrap a command so that all users can read this Python and these sources, even in folders closed to them."""
    lines = ["set -e", "mount --make-rprivate /", "spare=$(mktemp -d)"]
    wanted = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    closed: dict[Path, list[Path]] = {}
    for path in sorted(wanted):
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(parent, []).append(path)
                break
    for parent, paths in closed.items():
        for number, path in enumerate(paths):
            lines.append(f"mkdir $spare/{number}; mount --bind {shlex.quote(str(path))} $spare/{number}")
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(parent))}")
        for number, path in enumerate(paths):
            place = shlex.quote(str(path))
            lines.append(f"mkdir -p {place}; mount --move $spare/{number} {place}; rmdir $spare/{number}")
    return ["unshare", "--mount", "sh", "-c", "; ".join([*lines, "rmdir $spare", 'exec "$@"']), "sh", *command]
