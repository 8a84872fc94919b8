"""The rules of the house: sizes, names, links, layers, purity, and what the command may import.

What breaks a rule today is listed in `house_exceptions.json`. The lists only get shorter: `python tools/house.py` drops
what is needed no more.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import house
from gridweave import __version__
from house import FOLDERS, PACKAGE, ROOT

# Imports point down: a package imports only those of a lower number, and itself.
LAYERS = dict.fromkeys(("errors", "jit", "ranges", "settings", "version"), 0)
LAYERS |= {"plugins": 1, "values": 1, "shared_calls": 1, "netmodel": 2, "site": 2, "slurm": 3, "testing": 3}
LAYERS |= {"grid": 4, "scenarios": 5, "cli": 6}


@pytest.mark.parametrize("folder", FOLDERS)
def test_package_folders_are_links_into_the_tree(folder: str) -> None:
    """Each of the five folders is a committed relative link, or a wheel built from here would be silently empty."""
    link = PACKAGE / folder
    assert link.is_symlink()
    assert Path(os.readlink(link)) == Path("../..") / folder
    assert link.resolve() == ROOT / folder


def test_site_is_a_namespace_package() -> None:
    """site/ has no __init__.py of its own, which on a PYTHONPATH could replace Python's module of that name."""
    assert not (ROOT / "site" / "__init__.py").exists()


def test_imports_point_down() -> None:
    """No package imports one that stands above it or beside it."""
    for file in house.product_files():
        package, *own = house.module_name(file).split(".")[:2]
        for name, _ in house.imported_names(file):
            parts = name.split(".")
            assert parts[0] not in FOLDERS, f"{file}: import gridweave.{parts[0]}, never bare {parts[0]}"
            assert package == "gridweave_papers" or parts[0] != "gridweave_papers", f"{file} imports {name}"
            if package == "gridweave" and own and parts[0] == "gridweave" and parts[1:2] not in ([], own):
                assert LAYERS[parts[1]] < LAYERS[own[0]], f"{file} imports {name}"


def test_the_picture_of_the_house_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONTRIBUTING.md shows the rooms and imports of today; `python docs/draw_house.py` renews the picture."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import draw_house

    page = draw_house.PAGE.read_text(encoding="utf-8")
    assert draw_house.renewed(page) == page
    assert page.count("-->") + page.count("==>") <= 40  # more could not be read


def test_papers_use_only_public_documented_names() -> None:
    """gridweave-papers needs no name with a leading underscore, none of kernels, and none without a docstring."""
    files = [file for file in house.product_files() if file.startswith(house.PAPERS)]
    assert {file: found for file in files if (found := house.hidden_names(file))} == {}
    used = {(module, name) for file in files for module, name in house.imported_names(file)}
    assert house.undocumented((module, name) for module, name in used if module.startswith("gridweave.")) == set()


def test_both_packages_have_one_version() -> None:
    """gridweave-papers is released with gridweave, and requires exactly that release."""
    papers = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert papers["version"] == __version__
    assert f"gridweave=={__version__}" in papers["dependencies"]


def test_decision_code_is_pure() -> None:
    """Decision code imports no clock, no event loop, no I/O and no global random state."""
    for file in house.product_files():
        if house.is_pure(file):
            assert house.impurities(file) == [], file


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("long_files", f"a file has at most {house.MAX_FILE_LINES} lines"),
        ("full_folders", f"a folder has at most {house.MAX_FOLDER_FILES} files, that of the command 30"),
        ("long_functions", f"a function has at most {house.MAX_FUNCTION_LINES} lines without its docstring"),
        ("circles", "no files import each other, lazily, for types or through others; only results draw themselves"),
        ("folder_circles", "no folders import each other, directly or through others"),
        ("doubled_names", "no public class has the name of another"),
        ("without_return", "every function says what it returns, kernels too"),
        ("unchecked_files", "no file switches no-untyped-def off"),
        ("impure_imports", "pure files import only pure files, so that no shell is reached through others either"),
    ],
    ids=lambda value: value if value in house.MEASURES else "",
)
def test_only_the_listed_exceptions_break_a_rule(kind: str, rule: str) -> None:
    """Nothing breaks a rule but what is listed, none more than it is listed with, and what is listed still does."""
    listed, measured = house.exceptions(kind), house.MEASURES[kind]()
    if isinstance(listed, dict):
        new = {name: number for name, number in measured.items() if number > listed.get(name, 0)}
        unneeded = listed.keys() - measured.keys()
    else:
        new, unneeded = measured - listed, listed - measured
    assert not new, f"{rule}: {new}"
    assert not unneeded, f"no longer exceptions (run python tools/house.py): {unneeded}"


def test_functions_are_short() -> None:
    """Of a hundred functions 95 have at most 25 lines, and neither figure grows."""
    assert house.function_code_p95() <= house.exceptions("function_code_p95")
    assert house.function_p95() <= house.exceptions("function_p95") <= 25  # docstrings included


def test_little_is_copied() -> None:
    """The share of lines that stand in a run of six elsewhere as well does not grow (below 1%)."""
    assert house.copied_percent() <= house.exceptions("copied_percent") < 1


def test_few_files_know_one_discipline() -> None:
    """The number of files that name LOMARC is the one listed, which may only be lowered (to become: less than 12)."""
    assert len(house.lomarc_files()) == house.exceptions("lomarc_files"), house.lomarc_files()


@pytest.mark.parametrize("kind", ["capability_files", "words_in_names", "words_in_docstrings"])
def test_counts_do_not_grow(kind: str) -> None:
    """Fewer files know what some disciplines can do, and words to avoid become rarer: no count is above its ceiling."""
    ceilings = house.exceptions(kind)
    counts = house.MEASURES[kind]()
    assert {word: count for word, count in counts.items() if count > ceilings.get(word, 0)} == {}, ceilings


def test_types_are_asked_rather_than_attributes() -> None:
    assert house.asked_attributes() <= house.exceptions("asked_attributes")


def test_new_commits_have_short_subjects() -> None:
    assert house.long_subjects() <= house.exceptions("long_subjects")


def test_only_kernel_folders_are_compiled() -> None:
    """Compiled code lies in folders named kernels, whose sources tell when it must be compiled again."""
    declares = re.compile(r"^\s*@kernel", re.MULTILINE)
    for file in house.product_files():
        if Path(file).parent.name != "kernels":
            assert not declares.search(house.text_of(file)), file


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"], ["trace", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """Asking for help loads neither the compiler nor ray nor plotting."""
    code = (
        "import sys\n"
        "from gridweave.cli.main import app\n"
        f"app({arguments!r}, standalone_mode=False)\n"
        "heavy = {'numba', 'ray', 'matplotlib', 'networkx', 'scipy', 'pandas', 'aiohttp', 'sqlalchemy'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_every_import_of_ours_is_there() -> None:
    """What a file imports of gridweave is in the tree, also where the import is reached late."""
    assert house.lost_imports() == set()


def test_public_names_can_be_had() -> None:
    """Every public name of the package is found, and an unknown one is an AttributeError."""
    import gridweave

    for name in gridweave.__all__:
        assert getattr(gridweave, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gridweave.nonsense


def test_traces_are_not_committed() -> None:
    """Real traces are not ours to give away."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    assert [name for name in listed if ".swf" in Path(name).suffixes] == []
