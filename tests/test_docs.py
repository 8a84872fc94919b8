"""The examples in the documentation say what really comes out."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "gridweave"
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
MODULES = [
    "gridweave." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for folder in (PACKAGE, *(PACKAGE / name for name in ("grid", "site", "slurm", "netmodel", "scenarios", "cli")))
    for path in sorted(folder.glob("*.py") if folder == PACKAGE else folder.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module: str) -> None:
    """Every example in a docstring prints what it says."""
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_examples_in_pages(page: str) -> None:
    """Every Python example in a page prints what it says."""
    failed, _ = doctest.testfile(str(ROOT / page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_links_in_pages(page: str) -> None:
    """Every relative link in a page leads to a file."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_nothing_tells_to_install_a_name_that_is_not_ours() -> None:
    """All files say how to install a checkout, by extras that exist; `gridweave` on the index is not ours."""
    there = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("git does not say which files are ours")
    for path in filter(Path.is_file, (ROOT / name for name in listed)):
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"""pip install\s+(-\S+\s+)*['"]?gridweave\b""", text), path
        for extras in re.findall(r"""pip install\s+(?:-\S+\s+)*['"]?(?:\.|\S*/gridweave)\[([a-z,]+)\]""", text):
            assert set(extras.split(",")) <= there.keys(), path


def test_the_life_of_a_job_names_each_file_once() -> None:
    """The page lists fewer than 25 files that decide, and as many carriers as it says; each is there and named once."""
    page = (ROOT / "docs" / "life-of-a-job.md").read_text(encoding="utf-8")
    deciding, _, carried = page.partition("\n## Carried\n")
    files = [re.findall(r"`((?:[\w.-]+/)+[\w-]+\.py)`", part) for part in (deciding, carried)]
    assert len(set(files[0] + files[1])) == len(files[0]) + len(files[1])
    assert [file for file in files[0] + files[1] if not (ROOT / file).is_file()] == []
    assert re.findall(r"^(\d+)\. `([^`]+)`", deciding, re.MULTILINE) == [(f"{n}", f) for n, f in enumerate(files[0], 1)]
    assert f"the {len(files[0])} files" in deciding
    assert len(files[0]) < 25
    assert f"These {len(files[1])} files" in carried


def test_the_page_on_security_names_tests_that_are_there() -> None:
    """Each protection has a test, and each that is named is one."""
    section = (ROOT / "docs/security.md").read_text().partition("## What is tested")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert not [row for row in rows if "`test_" not in row and not row.endswith("** | |")]
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", written))
    named = set(re.findall(r"`(test_\w+)`", "".join(rows)))
    assert len(named) > 50
    assert named <= there
    attacks = int(re.findall(r"(\d+) attacks on the grid", section)[0])
    assert attacks == written.partition("ATTACKS: dict[str, str] = {\n")[2].partition("\n}\n")[0].count('\n    "') + 1
