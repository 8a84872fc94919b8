"""Entry points of packages that add to gridweave."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave import plugins
from gridweave.errors import InputError
from gridweave.plugins import all_entry_points, own_entry_points

GROUP = "gridweave.disciplines"


def install(folder: Path, package: str, points: str) -> None:
    """Write down that a package is installed in a folder, with these entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}\n")


def test_other_packages_stand_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are found, in alphabetical order."""
    install(tmp_path, "other", "fair = other:FAIR")
    monkeypatch.syspath_prepend(tmp_path)
    found = all_entry_points(GROUP)
    assert found == {**own_entry_points(GROUP), "fair": "other:FAIR"}
    assert list(found) == sorted(found)


@pytest.mark.parametrize("point", ["queue = other:QUEUE", "fair = third:FAIR"])
def test_one_name_in_two_packages_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Which of the two would count must not depend on the order in which they are found."""
    install(tmp_path, "other", "fair = other:FAIR")
    install(tmp_path, "third", point)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"is an entry point in the group gridweave\.disciplines of "):
        all_entry_points(GROUP)


def test_an_installed_package_is_found_without_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no pyproject.toml, the metadata of the installation counts."""
    install(tmp_path, "gridweave", "queue = gridweave.site.disciplines.queue:ENTRY")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_CHECKOUT", tmp_path / "pyproject.toml")
    assert own_entry_points(GROUP) == {"queue": "gridweave.site.disciplines.queue:ENTRY"}
