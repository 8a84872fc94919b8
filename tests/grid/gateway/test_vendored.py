"""The files of others among the pages."""

from __future__ import annotations

import hashlib
import json

from gridweave.grid.gateway.pages import FOLDER


def test_files_of_others_are_those_that_are_listed() -> None:
    """Each file of others that the pages use is listed with its version and licences, and is what was fetched then."""
    vendor = FOLDER / "vendor"
    listed = json.loads((vendor / "vendored.json").read_text(encoding="utf-8"))
    assert {path.name for path in vendor.iterdir()} == {*listed, "vendored.json", "LICENSES.txt"}
    for name, entry in listed.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == entry["sha256"]
        assert entry["version"]
        assert entry["licences"]
