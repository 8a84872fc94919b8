"""Measure the code base: its files, functions, imports, names and copied lines, from the sources alone.

Run as a script, it shortens the lists in `house_exceptions.json`: it drops exceptions that are no longer needed and
lowers numbers to the present values. It never adds exceptions.
"""

from __future__ import annotations

import ast
import functools
import io
import json
import math
import re
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "gridweave"
FOLDERS = ("netmodel", "site", "slurm", "grid", "scenarios")
PAPERS = "papers/src/gridweave_papers/"
EXCEPTIONS = Path(__file__).with_name("house_exceptions.json")

MAX_SUBJECT_LETTERS = 72
MAX_FILE_LINES = 800
MAX_FOLDER_FILES = 20
FOLDER_FILES = {"src/gridweave/cli": 30}  # a file for each command
MAX_FUNCTION_LINES = 40
COPIED_LINES = 6

# Decision code: the folders in PURE without SHELLS, which carry the decisions out.
PURE = ("netmodel/", "site/", "slurm/", "grid/", "scenarios/batch/kernels/")
SHELLS = (
    *("site/journal/", "site/machine/", "site/service/", "slurm/service/"),
    *(f"slurm/cluster/{name}.py" for name in ("asking", "commands", "look", "slurmrestd", "submit")),
    *("grid/config/", "grid/service/", "grid/gateway/", "grid/client/"),
)
# Decision code may import these although they are impure: errors contain paths, and compiled code is cached on disk.
BELOW = {
    f"src/gridweave/{name}.py"
    for name in ("errors", "jit", "plugins", "ranges", "settings", "shared_calls", "values", "version")
}
IMPURE = {
    *("time", "datetime", "asyncio", "threading", "multiprocessing", "subprocess", "concurrent", "signal"),
    *("os", "io", "pathlib", "shutil", "tempfile", "socket", "ssl", "http", "urllib", "aiohttp", "requests"),
    *("random", "secrets", "uuid", "ray", "sqlalchemy", "sqlite3", "rich", "typer", "prometheus_client"),
}

# Capabilities of some disciplines, with the names that show that a file depends on them. Disciplines may do so; the
# fewer other files do, the easier it is to add or remove a discipline.
CAPABILITIES = {
    "batch system": re.compile(r"slurm|AsksBatch|BatchSnapshot|RequestStatus|batch_system|pilot", re.IGNORECASE),
    "evictions": re.compile(r"evict", re.IGNORECASE),
    "forms": re.compile(r"JobForm|ChoosesForms|has_forms|form_of|in_form$|^forms(_problem)?$"),
    # GridExperience, NeedsExperience and SplitExperience are not learned by a discipline, so they do not count.
    "learned times": re.compile(r"(?<!grid)(?<!needs)(?<!split)experience|KnownTimes|known_times", re.IGNORECASE),
}
KNOWING = ("site/disciplines/", "slurm/", "site/known_times.py", PAPERS)

# Words to avoid (CONTRIBUTING.md, "Plain English"): as parts of names, as whole names, and in docstrings.
# Right in their places, and so not listed: `taken` and `spare` nodes, `seen` (visited), `near` (distance), and `lanes`
# (the hardware threads of a node).
NAME_PARTS = (
    *("aside", "barred", "book", "brought", "desk", "elements", "endure", "hopeless", "keeper", "knock", "maxima"),
    *("mend", "piece", "pieces", "play", "played", "plays", "room", "said", "stories", "story", "tell", "tells"),
    *("told", "twin", "twins", "wanted", "wish", "wishes"),
)
WHOLE_NAMES = ("one", "each", "found", "known", "given", "made", "places")
PHRASES = (
    *("anew", "as it were", "aside", "at hand", "barred", "besides?", "books?", "desks?", "elements", "endures?"),
    *(
        "for ever",
        "go(es)? on",
        "hand(s|ed)? in",
        "hopeless",
        "(?<!there )is (?-i:none)",
        "keepers?",
        "knocks?",
        "lanes?",
        "lets? in",
        "maxima",
    ),
    *("mends?", "pieces?", "played", "plays?", "rooms?", "so many", "stands? still", "stor(y|ies)", "taken in"),
    *("takes? in", "takes? note", "tells?", "to be had", "told", "twins?", "wherein", "whoever", "whom", "wish(es)?"),
)

# The only import circle that is allowed, for `result.plot()`.
RESULTS = re.compile(r"scenarios/results(/|\.py$)")
PLOTS = re.compile(r"scenarios/plots(/|\.py$)")

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function or method of the product, nested ones included."""

    name: str  # e.g. site/scheduler/core.py:SiteCore.submit
    lines: int  # from def to its end
    code_lines: int  # without the docstring
    has_return: bool  # has a return annotation


@functools.cache
def product_files() -> tuple[str, ...]:
    """Return the Python files of gridweave and gridweave-papers, relative to the root; links are not followed."""
    own = (path for path in PACKAGE.iterdir() if not path.is_symlink())
    tops = [*(ROOT / folder for folder in FOLDERS), *own, ROOT / PAPERS]
    found = [path for top in tops for path in (top.rglob("*.py") if top.is_dir() else [top]) if path.suffix == ".py"]
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in found))


@functools.cache
def text_of(file: str) -> str:
    """Return the text of a file."""
    return (ROOT / file).read_text(encoding="utf-8")


@functools.cache
def tree_of(file: str) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(text_of(file), file)


def line_counts() -> dict[str, int]:
    """Return the number of lines of each file."""
    return {file: len(text_of(file).splitlines()) for file in product_files()}


def folder_counts() -> dict[str, int]:
    """Return the number of Python files in each folder, without its subfolders."""
    return dict(Counter(Path(file).parent.as_posix() for file in product_files()))


def lost_imports() -> set[str]:
    """Return imports of missing names of ours, as "a.py -> gridweave.b.name"; a type checker may miss them."""
    homes = {module_name(file): file for file in product_files()}
    packages = {home.rsplit(".", depth)[0] for home in homes for depth in range(1, home.count(".") + 1)}
    lost = set()
    for file in product_files():
        for module, name in imported_names(file):
            if module.split(".")[0] not in ("gridweave", "gridweave_papers") or f"{module}.{name}" in homes:
                continue
            if module not in homes and module not in packages:
                lost.add(f"{file} -> {module}")
            elif name and module in homes and not re.search(rf"\b{name}\b", text_of(homes[module])):
                lost.add(f"{file} -> {module}.{name}")
    return lost


def long_files() -> dict[str, int]:
    """Return the files that are too long, with their numbers of lines."""
    return {file: lines for file, lines in line_counts().items() if lines > MAX_FILE_LINES}


def full_folders() -> dict[str, int]:
    """Return the folders with too many files, with their numbers of files."""
    counts = folder_counts().items()
    return {folder: files for folder, files in counts if files > FOLDER_FILES.get(folder, MAX_FOLDER_FILES)}


@functools.cache
def functions() -> tuple[Function, ...]:
    """Return all functions, file by file."""
    return tuple(function for file in product_files() for function in _functions(tree_of(file), f"{file}:"))


def _functions(node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FunctionNode):
            name = prefix + child.name
            lines = _span(child)
            yield Function(name, lines, lines - _docstring_lines(child), child.returns is not None)
            yield from _functions(child, f"{name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def _docstring_lines(node: _FunctionNode) -> int:
    docstring = _docstring(node)
    return _span(docstring) if docstring else 0


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring(node: ast.AST) -> ast.stmt | None:
    """Return the statement that is the docstring of a module, class or function."""
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first
    return None


def long_functions() -> set[str]:
    """Return the names of the functions that are too long, docstrings not counted."""
    return {function.name for function in functions() if function.code_lines > MAX_FUNCTION_LINES}


def function_p95() -> int:
    """Return the 95th percentile of the lines of functions, docstrings included."""
    return _p95(function.lines for function in functions())


def function_code_p95() -> int:
    """Return the 95th percentile of the lines of functions, docstrings not counted."""
    return _p95(function.code_lines for function in functions())


def _p95(lengths: Iterable[int]) -> int:
    ordered = sorted(lengths)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def module_name(file: str) -> str:
    """Return the module name of a file of the product."""
    top, inner = ("gridweave_papers", PAPERS) if file.startswith(PAPERS) else ("gridweave", "src/gridweave/")
    parts = Path(file.removeprefix(inner)).with_suffix("").parts
    return ".".join((top, *(part for part in parts if part != "__init__")))


@functools.cache
def imported_names(file: str) -> tuple[tuple[str, str], ...]:
    """Return all imports of a file as (module, name), with name "" for whole modules.

    Imports in functions and for type checking count.
    """
    found = []
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found += [(node.module or "", alias.name) for alias in node.names]
    return tuple(found)


@functools.cache
def import_graph() -> nx.DiGraph:
    """Return the graph of imports between files, including imports in functions and for type checking."""
    homes = {module_name(file): file for file in product_files()}
    graph = nx.DiGraph()
    graph.add_nodes_from(product_files())
    for file in product_files():
        for module, name in imported_names(file):
            home = homes.get(f"{module}.{name}") or homes.get(module)
            if home not in (None, file):
                graph.add_edge(file, home)
    return graph


def circles() -> set[frozenset[str]]:
    """Return the sets of files that import each other, directly or through others; results may import plots."""
    graph = import_graph()
    wanted = [(file, home) for file, home in graph.edges if RESULTS.match(file) and PLOTS.match(home)]
    parts = nx.strongly_connected_components(nx.restricted_view(graph, [], wanted))
    return {frozenset(part) for part in parts if len(part) > 1}


def folder_graph() -> nx.DiGraph:
    """Return the graph of imports between folders, where subfolders are separate nodes; results may import plots.

    The files directly in src/gridweave are left out, as its ``__init__`` exports public names of all folders.
    """
    graph = nx.DiGraph()
    for file, home in import_graph().edges:
        pair = Path(file).parent.as_posix(), Path(home).parent.as_posix()
        is_wanted = RESULTS.match(file) and PLOTS.match(home)
        if pair[0] != pair[1] and "src/gridweave" not in pair and not is_wanted:
            graph.add_edge(*pair)
    return graph


def folder_circles() -> set[frozenset[str]]:
    """Return the pairs of folders that import each other, and the longer circles without such a pair."""
    graph = folder_graph()
    pairs = {frozenset(pair) for pair in graph.edges if graph.has_edge(*reversed(pair))}
    graph.remove_edges_from([edge for edge in graph.edges if frozenset(edge) in pairs])
    return pairs | {frozenset(part) for part in nx.strongly_connected_components(graph) if len(part) > 1}


def hidden_names(file: str) -> list[str]:
    """Return the names of gridweave that a file uses although they are private or belong to kernels."""
    ours = [(module, name) for module, name in imported_names(file) if module.split(".")[0] == "gridweave"]
    found = [f"{module}.{name}" for module, name in ours if "kernels" in module.split(".") or name.startswith("_")]
    imported = {name for _, name in ours}
    return found + [
        ast.unparse(node)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
        if isinstance(node.value, ast.Name) and node.value.id in imported
    ]


def undocumented(names: Iterable[tuple[str, str]]) -> set[str]:
    """Return the functions and classes without a docstring, among those given by module and name."""
    homes = {module_name(file): file for file in product_files()}
    return {
        f"{module}.{node.name}"
        for module, name in names
        for node in tree_of(homes[module]).body
        if isinstance(node, _FunctionNode | ast.ClassDef) and node.name == name and _docstring(node) is None
    }


def impurities(file: str) -> list[str]:
    """Return the imports, calls and attributes in a file that read a clock, do I/O or use global random state."""
    found = [f"imports {module}" for module, _ in imported_names(file) if module.split(".")[0] in IMPURE]
    for node in ast.walk(tree_of(file)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"open", "print", "input"}
        ):
            found.append(f"calls {node.func.id} in line {node.lineno}")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"np.random", "numpy.random"}:
            found.append(f"draws in line {node.lineno}")
    return found


def is_pure(file: str) -> bool:
    """Whether a file must be pure."""
    return file.startswith(PURE) and not file.startswith(SHELLS)


def impure_imports() -> set[str]:
    """Return the imports of impure files by pure files, as "a.py -> b.py".

    Direct imports suffice: every pure file is checked, so without violations no indirect import is impure either.
    """
    return {
        f"{file} -> {home}"
        for file, home in import_graph().edges
        if is_pure(file) and not is_pure(home) and home not in BELOW
    }


def doubled_names() -> dict[str, int]:
    """Return the public names that more than one class has, with the number of classes."""
    names = (
        node.name
        for file in product_files()
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: number for name, number in Counter(names).items() if number > 1}


def lomarc_files() -> list[str]:
    """Return the files that name LOMARC in code, comments or texts."""
    return [file for file in product_files() if "lomarc" in text_of(file).lower() or "lomarc" in file]


def capability_files() -> dict[str, int]:
    """Return the number of files outside the disciplines that depend on each capability."""
    return {
        capability: sum(
            any(pattern.search(name) for name in names_in(file))
            for file in product_files()
            if not file.startswith(KNOWING)
        )
        for capability, pattern in CAPABILITIES.items()
    }


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """Return the identifiers of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(text_of(file)).readline)
    return frozenset(token.string for token in tokens if token.type == tokenize.NAME)


def words_in_names() -> dict[str, int]:
    """Return how often names contain each word to avoid; a name counts once per file."""
    counts = Counter[str]()
    for file in product_files():
        for name in names_in(file):
            parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
            counts.update(parts.intersection(NAME_PARTS))
            counts.update({name}.intersection(WHOLE_NAMES))
    return dict(counts)


def words_in_docstrings() -> dict[str, int]:
    """Return how often docstrings contain each word or phrase to avoid; the strings under constants count."""
    text = "\n".join(" ".join(docstring.split()) for file in product_files() for docstring in _docstrings(file))
    found = {phrase: re.findall(rf"\b(?:{phrase})\b", text, re.IGNORECASE) for phrase in PHRASES}
    return {phrase: len(matches) for phrase, matches in found.items() if matches}


def _docstrings(file: str) -> Iterator[str]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def asked_attributes() -> int:
    """Return how often decision code and the grid check for an attribute instead of a type."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3))
        for file in product_files()
        if file.startswith(("site/", "grid/", "scenarios/"))
        for node in ast.walk(tree_of(file))
    )


def long_subjects() -> int:
    """Return the number of commits with a subject of more than 72 characters; 0 without a Git history."""
    command = ["git", "log", "--no-merges", "--format=%s"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return sum(len(subject) > MAX_SUBJECT_LETTERS for subject in log.splitlines())


def without_return() -> dict[str, int]:
    """Return the files with functions without a return annotation, with the number of such functions."""
    return dict(Counter(function.name.split(":")[0] for function in functions() if not function.has_return))


def unchecked_files() -> set[str]:
    """Return the files with a comment that disables no-untyped-def."""
    found = set()
    for file in product_files():
        if "no-untyped-def" in text_of(file):
            tokens = tokenize.generate_tokens(io.StringIO(text_of(file)).readline)
            if any(token.type == tokenize.COMMENT and "no-untyped-def" in token.string for token in tokens):
                found.add(file)
    return found


def copied_lines() -> dict[str, set[int]]:
    """Return the lines of each file that belong to a run of six or more lines that also occurs elsewhere.

    Only lines of code count: indentation, blank lines, comments, docstrings, imports and lines with only brackets are
    ignored.
    """
    places: dict[tuple[str, ...], list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for file in product_files():
        lines = list(_code_lines(file))
        for start in range(len(lines) - COPIED_LINES + 1):
            run = lines[start : start + COPIED_LINES]
            places[tuple(text for _, text in run)].append((file, tuple(number for number, _ in run)))
    copied: dict[str, set[int]] = defaultdict(set)
    for found in places.values():
        if len(found) > 1:
            for file, numbers in found:
                copied[file].update(numbers)
    return dict(copied)


def copied_percent() -> float:
    """Return the percentage of copied lines of code, rounded up to a tenth."""
    copied = sum(map(len, copied_lines().values()))
    return math.ceil(1000 * copied / sum(len(list(_code_lines(file))) for file in product_files())) / 10


def _code_lines(file: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that count as code, numbered from 1, without their indentation."""
    left_out: set[int] = set()
    for node in ast.walk(tree_of(file)):
        statement = node if isinstance(node, ast.Import | ast.ImportFrom) else _docstring(node)
        if statement is not None:
            left_out.update(range(statement.lineno, statement.lineno + _span(statement)))
    for number, line in enumerate(text_of(file).splitlines(), 1):
        text = line.strip()
        if number not in left_out and not text.startswith("#") and any(map(str.isalnum, text)):
            yield number, text


# Maps each section of the exceptions to the function that measures it.
MEASURES: dict[str, Callable[[], Any]] = {
    "long_files": long_files,
    "full_folders": full_folders,
    "long_functions": long_functions,
    "function_p95": function_p95,
    "function_code_p95": function_code_p95,
    "circles": circles,
    "folder_circles": folder_circles,
    "doubled_names": doubled_names,
    "lomarc_files": lambda: len(lomarc_files()),
    "without_return": without_return,
    "unchecked_files": unchecked_files,
    "impure_imports": impure_imports,
    "copied_percent": copied_percent,
    "capability_files": capability_files,
    "words_in_names": words_in_names,
    "words_in_docstrings": words_in_docstrings,
    "asked_attributes": asked_attributes,
    "long_subjects": long_subjects,
}


def exceptions(section: str) -> Any:
    """Return the present exceptions of a section: names with numbers, a set, or a number."""
    listed = json.loads(EXCEPTIONS.read_text(encoding="utf-8"))[section]
    if isinstance(listed, list):
        return {frozenset(item) if isinstance(item, list) else item for item in listed}
    return listed


def shortened(listed: Any, measured: Any) -> Any:
    """Return the exceptions of a section without those no longer needed, in the form of the file."""
    if isinstance(listed, dict):
        return {name: min(listed[name], measured[name]) for name in sorted(listed.keys() & measured.keys())}
    if isinstance(listed, set):
        kept = [item for item in measured if item in listed]
        # A broken circle may leave smaller circles.
        left = [item for item in measured - listed if isinstance(item, frozenset) and any(map(item.issubset, listed))]
        return sorted(sorted(item) if isinstance(item, frozenset) else item for item in kept + left)
    return min(listed, measured)


def main() -> None:
    """Shorten the lists of exceptions, and print their sizes."""
    listed = {section: shortened(exceptions(section), measure()) for section, measure in MEASURES.items()}
    EXCEPTIONS.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    print(f"{sum(line_counts().values())} lines in {len(product_files())} files, {len(functions())} functions")
    for section, left in listed.items():
        print(f"{section:16} {left if isinstance(left, int | float) else len(left)}")


if __name__ == "__main__":
    main()
