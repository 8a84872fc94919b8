"""The compiled number parser, compared with Python's float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gridweave.scenarios.traces.kernels.numbers import NOT_PLAIN, read_plain
from gridweave.scenarios.traces.swf import SWF_FIELDS, read_records

FIELDS = 3


def read(text: bytes, fields: int = FIELDS) -> npt.NDArray[np.float64] | None:
    """Return the table in a text, or None."""
    table = np.full((text.count(b"\n") + 1, fields), np.nan)
    rows = int(read_plain(np.frombuffer(text, np.uint8), table))
    return None if rows == NOT_PLAIN else table[:rows]


def test_random_tables_parse_exactly() -> None:
    rng = np.random.default_rng(1)
    blanks, ends = np.array([" ", "  ", "\t", " \t "]), np.array(["\n", "\r\n", " \n", "\n\n", "\n \t\n"])
    for _ in range(200):
        numbers = []
        for _ in range(FIELDS * int(rng.integers(1, 30))):
            digits = "".join(map(str, rng.integers(0, 10, rng.integers(1, 16))))
            place = int(rng.integers(0, len(digits) + 1))
            number = digits if rng.random() < 0.5 else f"{digits[:place]}.{digits[place:]}"
            numbers.append(("-" if rng.random() < 0.3 else "") + number)
        lines = [numbers[i : i + FIELDS] for i in range(0, len(numbers), FIELDS)]
        text = "".join(f"{rng.choice(blanks)}{rng.choice(blanks).join(line)}{rng.choice(ends)}" for line in lines)
        found = read((text.rstrip() if rng.random() < 0.3 else text).encode())
        assert found is not None
        np.testing.assert_array_equal(found, np.array(lines, np.float64))


@pytest.mark.parametrize(
    "line",
    [
        *("1 2", "1 2 3 4", "1 2 x", "1 2 -", "1 2 .", "1 2 -.", "1 2 1e3", "1 2 +3", "1 2 3-", "1 2 1.2.3", "1 2 --3"),
        *("1 2 ;3", "; 1 2", "1 2 nan", "1 2 1234567890123456", "1 2 \xa03", "1 2 \x003"),
    ],
)
def test_unusual_numbers_are_left_to_the_slow_parser(line: str) -> None:
    for text in (line, f"{line}\n7 8 9\n", f"7 8 9\n{line}\n"):
        assert read(text.encode("latin-1")) is None


@pytest.mark.parametrize("odd", ["", "  ; a comment between", "1 " * 17 + "1e1"])
def test_large_files_parse_the_same_with_either_parser(odd: str, tmp_path: Path) -> None:
    names = [field.name for field in SWF_FIELDS]
    values = np.arange(60_000 * len(names)).reshape(-1, len(names)) % 1000
    lines = [" ".join(map(str, row)) for row in values.tolist()]
    lines[40_000:40_000] = [odd] if odd else []
    path = tmp_path / "large.swf"
    path.write_text("; MaxNodes: 8\n;\n; Note: first\n" + "\n".join(lines))
    assert path.stat().st_size > 3 << 20
    columns, header = read_records(path)
    assert (header.max_nodes, (header.text("Note") or "").partition("\n")[0]) == (8, "first")
    if odd.startswith("1"):
        values = np.insert(values, 40_000, [*[1] * 17, 10], axis=0)
    for place, name in enumerate(names):
        np.testing.assert_array_equal(columns[name], values[:, place])
