"""Parse a table of plain decimal numbers in a single pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridweave.jit import Floats, Int, kernel

Bytes = npt.NDArray[np.uint8]

NOT_PLAIN = -1
"""Return value that means the text is not a table of plain numbers with the right number of columns."""

_TAB, _NEWLINE, _RETURN, _SPACE, _MINUS, _POINT, _ZERO, _NINE = 0x09, 0x0A, 0x0D, 0x20, 0x2D, 0x2E, 0x30, 0x39

# A double holds integers of up to 15 digits and powers of ten up to 10^22 exactly, so their quotient is rounded only
# once and is the double nearest to the written number.
_MOST_DIGITS = 15


@kernel
def read_plain(text: Bytes, table: Floats) -> Int:
    """Parse lines of decimal numbers separated by white space, such as ``-1`` or ``12.50``; skip blank lines.

    Parameters
    ----------
    text : numpy.ndarray of uint8, shape (n,)
        ASCII. The last line may lack a newline.
    table : numpy.ndarray of float64, shape (rows, fields)
        Output: one row per line. Must have at least as many rows as the text has lines.

    Returns
    -------
    int
        Number of rows written. `NOT_PLAIN` if a line has the wrong number of fields, or a field is not a number of up
        to 15 digits without an exponent; the contents of the table are then undefined.
    """
    place: Int = 0
    row: Int = 0
    field, fields, end = 0, table.shape[1], len(text)
    while place <= end:
        # Treat the end of the text as a newline.
        byte = text[place] if place < end else np.uint8(_NEWLINE)
        if byte in (_SPACE, _TAB, _RETURN):
            place += 1
        elif byte == _NEWLINE:
            if field not in (0, fields):
                return NOT_PLAIN
            row += field != 0
            field = 0
            place += 1
        else:
            place, number = _number(text, place)
            if place == NOT_PLAIN or field == fields:
                return NOT_PLAIN
            table[row, field] = number
            field += 1
    return row


@kernel
def _number(text: Bytes, place: Int) -> tuple[Int, float]:
    """Parse the number at index ``place``; return the index after it and its value, or `NOT_PLAIN` and 0."""
    minus = text[place] == _MINUS
    place += minus
    whole: Int = 0
    digits, decimals, in_decimals = 0, 0, False
    while place < len(text):
        byte = text[place]
        if _ZERO <= byte <= _NINE:
            whole = whole * 10 + (np.int64(byte) - _ZERO)
            digits += 1
            decimals += in_decimals
        elif byte == _POINT and not in_decimals:
            in_decimals = True
        elif byte in (_SPACE, _NEWLINE, _TAB, _RETURN):
            break
        else:
            return NOT_PLAIN, 0.0
        place += 1
    if digits == 0 or digits > _MOST_DIGITS:
        return NOT_PLAIN, 0.0
    number = whole / 10.0**decimals
    return place, -number if minus else number
