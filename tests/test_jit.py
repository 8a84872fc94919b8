"""What is prepared to be called many times does what the kernel does, and no change of a kernel goes unnoticed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType, SimpleNamespace

import numba
import numpy as np
import pytest

import gridweave
from gridweave.grid.kernels.overhead import stretched_ms
from gridweave.jit import _KEPT_S, _STATES_KEPT, _ByName, _finder, _prune, _stamp, _use, prepared
from gridweave.site.kernels.dispatch import PlanRules, QueueRules
from support.machine import PATIENCE_S


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


PREPARE = """
import sys
import numpy as np
from gridweave.grid.kernels.overhead import stretched_ms
from gridweave.jit import prepared
print(flush=True)
sys.stdin.readline()
prepared(stretched_ms, np.zeros(2), 1, 1.0, 1)
print(sum(stretched_ms.whole.stats.cache_misses.values()))
"""


def test_of_processes_that_prepare_the_same_kernel_at_once_one_compiles_it(tmp_path: Path) -> None:
    """The others wait, and load what that one has kept."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", PREPARE], env=environment, **pipes) for _ in range(2)]
    for each in started:
        assert each.stdout is not None
        each.stdout.readline()
    for each in started:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    assert sorted(each.communicate()[0] for each in started) == ["0\n", "1\n"]


RULES = """
from typing import NamedTuple
import numpy as np
from gridweave.jit import kernel, kernel_method

class Adds(NamedTuple):
    by: int

    @kernel_method
    def change(self, table, row):
        table[row] += self.by

class Plain(NamedTuple):
    change: int

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

@kernel
def field(plain):
    return plain.change
"""
RUN = """
import sys
import numpy as np
from gridweave import jit
if len(sys.argv) > 3:
    # What is kept now another process has kept after this one had looked.
    jit._PromptCache.load_overload = lambda *_: None
sys.path.insert(0, sys.argv[1])
from kernels.loop import field, loop
if sys.argv[2] == "mine":
    from kernels.mine import Adds, Multiplies, Plain
else:
    from kernels.theirs import Adds, Multiplies, Plain
table = np.array([1.0, 2.0])
assert field(Plain(7)) == 7
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

    def run(*whose: str) -> str:
        command = [sys.executable, "-c", RUN, str(tmp_path), *whose]
        environment = os.environ | off | {"NUMBA_CACHE_DIR": str(tmp_path / "kept")}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout

    for name in ("mine", "theirs"):
        (folder / f"{name}.py").write_text(RULES)
    assert [run(whose) for whose in ("mine", "mine", "theirs")] == ["[2.0, 2.5]\n"] * 3
    (folder / "mine.py").write_text(RULES.replace("+=", "-="))
    assert run("mine") == "[-1.0, -0.5]\n"
    (folder / "mine.py").unlink()
    assert run("theirs", "has looked") == "[2.0, 2.5]\n"
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


DAY_S = 24 * 3600.0


def kept_states(root: Path, ages_s: list[float]) -> list[Path]:
    """Make folders of compiled code that were last used so long ago; the last of them before one said when."""
    folders = [root / f"{number:016x}" for number in range(len(ages_s))]
    for folder, age_s in zip(folders, ages_s, strict=True):
        (folder / "gridweave.site.kernels.order").mkdir(parents=True)
        (folder / "gridweave.site.kernels.order" / "sort.nbi").write_bytes(b"compiled")
        (folder / "used").touch()
        os.utime(folder / "used", (time.time() - age_s,) * 2)
    (folders[-1] / "used").unlink()
    os.utime(folders[-1], (time.time() - ages_s[-1],) * 2)
    return folders


def test_of_compiled_code_the_states_used_last_are_kept(tmp_path: Path) -> None:
    """Ten states of the sources are kept, those used last; what is not such a state is left alone."""
    others = [tmp_path / name for name in ("sort_0123456789abcdef0123456789abcdef01234567", "notes")]
    for other in others:
        other.mkdir()
    folders = kept_states(tmp_path, [60.0 * (7 * number % 20) for number in range(20)])
    _prune(tmp_path)
    kept = {folder for number, folder in enumerate(folders) if 7 * number % 20 < _STATES_KEPT}
    assert set(tmp_path.iterdir()) == kept | set(others)
    assert len(kept) == 10


def test_compiled_code_that_was_not_used_for_a_month_goes(tmp_path: Path) -> None:
    """Of few states, too, one goes that was not used for thirty days."""
    folders = kept_states(tmp_path, [DAY_S, 29 * DAY_S, 31 * DAY_S, 40 * DAY_S])
    _prune(tmp_path)
    assert sorted(tmp_path.iterdir()) == folders[:2]
    assert _KEPT_S == 30 * DAY_S


HOLD = "import sys; from pathlib import Path; from gridweave.jit import _use; _use(Path(sys.argv[1])); print(); input()"


def test_compiled_code_that_a_process_uses_is_not_removed(tmp_path: Path) -> None:
    """While another process lives that has begun to use a state, it stays, however old; afterwards it goes."""
    (folder,) = kept_states(tmp_path, [40 * DAY_S])
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        os.utime(folder / "used", (0, 0))
        _prune(tmp_path)
        assert (folder / "gridweave.site.kernels.order" / "sort.nbi").exists()
        process.stdin.close()
    _prune(tmp_path)
    assert not folder.exists()


def test_several_processes_may_remove_compiled_code_at_once(tmp_path: Path) -> None:
    """Whoever finds a state half removed, or gone, goes on with the next; together they remove all."""
    kept_states(tmp_path, [31 * DAY_S] * 60)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(_prune, [tmp_path] * 6))
    _prune(tmp_path)
    assert not list(tmp_path.iterdir())


def test_whoever_begins_to_use_a_state_that_is_being_removed_has_it_afterwards(tmp_path: Path) -> None:
    """Who comes while a state is removed waits, and then holds a new folder, which nobody else can remove."""
    (folder,) = kept_states(tmp_path, [0.0])
    remover = os.open(folder / "used", os.O_RDWR | os.O_CREAT)
    fcntl.flock(remover, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(_use, folder)
        (folder / "used").rename(tmp_path / "removed")
        os.close(remover)
        begun.result(timeout=PATIENCE_S)
    os.utime(folder / "used", (0, 0))
    _prune(tmp_path)
    assert folder.exists()


def test_a_kernel_says_that_its_folder_is_in_use(tmp_path: Path) -> None:
    """The first kernel of a process that is declared removes what is old, and says that its own folder is used."""
    (old,) = kept_states(tmp_path, [40 * DAY_S])
    code = "from gridweave.grid.kernels.overhead import stretched_ms; stretched_ms.part"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)})
    (folder,) = tmp_path.iterdir()
    assert folder != old
    assert (folder / "used").stat().st_mtime > time.time() - DAY_S


def test_methods_have_symbols_of_their_own() -> None:
    """Two methods whose arguments are of the same types are told apart by more than a number that a process gives."""
    of_rules = SimpleNamespace(instance_class=QueueRules)
    of_plan = SimpleNamespace(instance_class=PlanRules)
    names = [_finder(name)(kind).__qualname__ for kind in (of_rules, of_plan) for name in ("submitted", "run_pass")]
    assert names[0] == "gridweave.site.kernels.dispatch.QueueRules.submitted"
    assert len(set(names)) == len(names)
