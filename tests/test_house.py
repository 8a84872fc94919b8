"""The rules of the house: links, layers, purity, and what the command may import."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "gridweave"
FOLDERS = ("grid", "site", "netmodel", "scenarios")

# Imports point down: a package imports only those of a lower number, and itself.
LAYERS = {"errors": 0, "jit": 0, "netmodel": 1, "site": 1, "grid": 2, "scenarios": 3, "cli": 4}

# Decision code: all of these folders, but for those named, which carry decisions out.
PURE = ("netmodel", "site", "grid", "scenarios/kernels")
SHELLS = ("site/live", "grid/live", "grid/gateway", "grid/client")
IMPURE = {
    *("time", "datetime", "asyncio", "threading", "multiprocessing", "subprocess", "concurrent", "signal"),
    *("os", "io", "pathlib", "shutil", "tempfile", "socket", "ssl", "http", "urllib", "aiohttp", "requests"),
    *("random", "secrets", "uuid", "ray", "sqlalchemy", "sqlite3", "rich", "typer", "prometheus_client"),
}


def python_files(*folders: str) -> Iterator[Path]:
    """Yield the Python files below folders of the project."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("folder", FOLDERS)
def test_package_folders_are_links_into_the_tree(folder: str) -> None:
    """Each of the four folders is a committed relative link, or a wheel built from here would be silently empty."""
    link = PACKAGE / folder
    assert link.is_symlink()
    assert Path(os.readlink(link)) == Path("../..") / folder
    assert link.resolve() == ROOT / folder


def test_site_is_a_namespace_package() -> None:
    """site/ has no __init__.py of its own, which on a PYTHONPATH could replace Python's module of that name."""
    assert not (ROOT / "site" / "__init__.py").exists()


@pytest.mark.parametrize("package", ["netmodel", "site", "grid", "scenarios", "src/gridweave/cli"])
def test_imports_point_down(package: str) -> None:
    """No package imports one that stands above it or beside it."""
    own = package.rsplit("/", 1)[-1]
    for path in python_files(package):
        for name in imports(path):
            parts = name.split(".")
            assert parts[0] not in FOLDERS, f"{path}: import gridweave.{parts[0]}, never bare {parts[0]}"
            if parts[0] == "gridweave" and len(parts) > 1 and parts[1] != own:
                assert LAYERS[parts[1]] < LAYERS[own], f"{path} imports {name}"


def test_decision_code_is_pure() -> None:
    """Decision code imports no clock, no event loop, no I/O and no global random state."""
    for path in python_files(*PURE):
        if path.relative_to(ROOT).as_posix().startswith(SHELLS):
            continue
        for name in imports(path):
            assert name.split(".")[0] not in IMPURE, f"{path} imports {name}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"open", "print", "input"}, f"{path}:{node.lineno} calls {node.func.id}"
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) not in {"np.random", "numpy.random"}, f"{path}:{node.lineno} draws"


def test_only_kernel_folders_are_compiled() -> None:
    """Compiled code lies in folders named kernels, whose sources tell when it must be compiled anew."""
    declares = re.compile(r"^\s*@kernel", re.MULTILINE)
    for path in python_files(*FOLDERS, "src/gridweave/cli"):
        if path.parent.name != "kernels":
            assert not declares.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"], ["trace", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """Asking for help loads neither the compiler nor ray nor plotting."""
    code = (
        "import sys\n"
        "from gridweave.cli.main import app\n"
        f"app({arguments!r}, standalone_mode=False)\n"
        "heavy = {'numba', 'ray', 'matplotlib', 'scipy', 'pandas', 'aiohttp', 'sqlalchemy'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


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
