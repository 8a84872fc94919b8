"""What is prepared to be called many times does what the kernel does, and no change of a kernel goes unnoticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import numba
import numpy as np
import pytest

import gridweave
from gridweave.grid.kernels.overhead import stretched_ms
from gridweave.jit import _ByName, _stamp, prepared


def test_code_that_was_found_before_is_not_taken_for_arrays_of_another_layout() -> None:
    """Tables that lie dense in memory, with gaps, and of whole numbers are each read as what they are."""
    dense = np.array([1.0, 2.0, 3.0])
    gaps = np.array([4.0, 9.0, 5.0, 9.0, 6.0])[::2]
    whole = np.array([7, 8, 9])
    for _ in range(2):
        found = [prepared(stretched_ms, table, 1, 1.0, 1)(table, 3, 1.0, 100) for table in (dense, gaps, whole)]
        assert found == [300, 600, 900]


def test_code_is_found_once_for_arguments_that_are_alike() -> None:
    """A second table of the same layout, of whatever length, needs no look at its type."""
    first = prepared(stretched_ms, np.zeros(2), 1, 1.0, 1)
    assert prepared(stretched_ms, np.ones(5), 7, 0.5, 9) is first


RULES = """
from typing import NamedTuple
import numpy as np
from gridweave.jit import kernel, kernel_method

class Adds(NamedTuple):
    by: int

    @kernel_method
    def change(self, table, row):
        table[row] += self.by

class Multiplies(NamedTuple):
    by: int
    scale: float

    @kernel_method
    def change(self, table, row):
        table[row] *= self.by * self.scale
"""
LOOP = """
from gridweave.jit import kernel

@kernel
def loop(table, rules):
    for row in range(len(table)):
        rules.change(table, row)
"""
RUN = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from kernels.loop import loop
if sys.argv[2] == "mine":
    from kernels.mine import Adds, Multiplies
else:
    from kernels.theirs import Adds, Multiplies
table = np.array([1.0, 2.0])
loop(table, Adds(3))
loop(table, Multiplies(2, 0.25))
print(table.tolist())
"""


@pytest.mark.parametrize("compiled", [True, False])
def test_a_kernel_calls_the_methods_of_the_class_that_it_is_given(tmp_path: Path, *, compiled: bool) -> None:
    """Compiled or not; also from what an earlier process has kept, and when a class that it kept code for is gone."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "loop.py").write_text(LOOP)
    off = {} if compiled else {"NUMBA_DISABLE_JIT": "1"}

    def run(whose: str) -> str:
        command = [sys.executable, "-c", RUN, str(tmp_path), whose]
        environment = os.environ | off | {"NUMBA_CACHE_DIR": str(tmp_path / "kept")}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout

    for name in ("mine", "theirs"):
        (folder / f"{name}.py").write_text(RULES)
    assert [run(whose) for whose in ("mine", "mine", "theirs")] == ["[2.0, 2.5]\n"] * 3
    (folder / "mine.py").write_text(RULES.replace("+=", "-="))
    assert run("mine") == "[-1.0, -0.5]\n"
    (folder / "mine.py").unlink()
    assert run("theirs") == "[2.0, 2.5]\n"


@pytest.mark.parametrize("folder", ["site/kernels", "site/disciplines/gang/kernels", "kernels"])
@pytest.mark.parametrize("linked", [False, True])
def test_compiled_code_is_told_apart_by_the_kernels_at_any_depth(tmp_path: Path, folder: str, linked: bool) -> None:
    """A kernel that is added, changed or renamed changes the stamp, behind a link as well; another file does not."""
    package = tmp_path / "package"
    behind = tmp_path / "behind"
    (behind if linked else package).mkdir(parents=True)
    if linked:
        package.mkdir()
        (package / "linked").symlink_to(behind)
    kernels = (behind if linked else package) / folder
    stamps = [_stamp(package)]
    kernels.mkdir(parents=True)
    (kernels.parent / "core.py").write_text("CODE = 1")
    assert _stamp(package) == stamps[0]
    for text in ("CODE = 1", "CODE = 2"):
        (kernels / "order.py").write_text(text)
        stamps.append(_stamp(package))
    (kernels / "order.py").rename(kernels / "sorting.py")
    stamps.append(_stamp(package))
    assert len(set(stamps)) == len(stamps)


def test_the_stamp_covers_the_kernels_of_this_package() -> None:
    """The folders of the package, which are links in a checkout, are walked: the stamp is not that of nothing."""
    package = Path(gridweave.__file__).parent
    assert _stamp(package) != _stamp(package / "nothing")


def test_two_checkouts_with_the_same_kernels_share_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel's compiled code is found by its module and line, wherever the file lies; a kernel's own is kept so."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    places = []
    for checkout in ("/here", "/there"):
        names = {"__name__": "gridweave.site.kernels.order"}
        exec(compile("def first(a): return a\ndef second(a): return a", f"{checkout}/order.py", "exec"), names)
        for name in ("first", "second"):
            function = names[name]
            assert isinstance(function, FunctionType)
            kept = _ByName.from_function(function, function.__code__.co_filename)
            assert kept is not None
            places.append((kept.get_cache_path(), kept.get_source_stamp(), kept.get_disambiguator()))
    assert places[:2] == places[2:]
    assert places[0] != places[1]
    assert places[0][0] == str(tmp_path / "gridweave.site.kernels.order")
    assert Path(stretched_ms.whole.stats.cache_path).name == "gridweave.grid.kernels.overhead"  # type: ignore[attr-defined]


def test_where_nothing_can_be_written_compiled_code_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be made is left to the places that numba knows."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    assert _ByName.from_function(_stamp, "") is None
