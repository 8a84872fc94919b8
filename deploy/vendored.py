"""Download the third-party files of the pages, listed in grid/gateway/web/vendor/vendored.json; needs npm.

    python deploy/vendored.py [NAME=VERSION ...]

With a version the file is taken of that one, and the list says so; look at what has changed before you commit it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "grid" / "gateway" / "web" / "vendor"
LIST = VENDOR / "vendored.json"


def fetch(package: str, version: str, file: str) -> bytes:
    """Return a file of a package of the npm registry."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package}@{version}", "--pack-destination", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as packed:
            member = packed.extractfile(f"package/{file}")
            if member is None:
                raise SystemExit(f"{package} {version} has no file {file}; say in {LIST.name} which one is meant")
            return member.read()


def main(wanted: dict[str, str]) -> None:
    """Write all files again, and the list with what they are now."""
    listed = json.loads(LIST.read_text(encoding="utf-8"))
    unknown = wanted.keys() - {entry["package"] for entry in listed.values()}
    if unknown:
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such package in {LIST.name}")
    for name, entry in listed.items():
        entry["version"] = wanted.get(entry["package"], entry["version"])
        data = fetch(entry["package"], entry["version"], entry["file"])
        entry["sha256"] = hashlib.sha256(data).hexdigest()
        (VENDOR / name).write_bytes(data)
        print(f"{name}: {entry['package']} {entry['version']}, {len(data):,} bytes")
    LIST.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
