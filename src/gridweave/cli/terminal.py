"""Remove control sequences from foreign text, so that a terminal shows the text and obeys nothing in it."""

from __future__ import annotations

import codecs
import re

_MOST_HELD = 4_096
"""Longest unfinished control sequence that is held back; a longer one is shown as text."""

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, moves of the cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and the like: titles, links
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # others: resets, character sets
)
_BEGINS = re.compile(r"[\x1b\x90\x98\x9b\x9d-\x9f]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters except tabs and line ends (ECMA-48)."""


def visible(text: str) -> str:
    r"""Return a text without control sequences and control characters.

    Examples
    --------
    >>> visible("a\x1b[31mred\x1b[0m\x07 \x1b]0;title\x07b")
    'ared b'
    """
    return text if text.isprintable() else _CONTROL.sub("", _SEQUENCE.sub("", text))


class VisibleBytes:
    r"""Removes control sequences from UTF-8 that arrives in parts; invalid bytes are shown as replacement characters.

    Examples
    --------
    >>> output = VisibleBytes()
    >>> [output.add(part) for part in (b"a\x1b[3", b"1mb", b"\xc3", b"\xa9")], output.end()
    ([b'a', b'b', b'', b'\xc3\xa9'], b'')
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # the beginning of an unfinished sequence

    def add(self, data: bytes) -> bytes:
        """Return the visible bytes of the next part, as far as they are complete."""
        text = _SEQUENCE.sub("", self._held + self._decoder.decode(data))
        begun = _BEGINS.search(text)
        at = len(text) if begun is None or len(text) - begun.start() > _MOST_HELD else begun.start()
        self._held = text[at:]
        return visible(text[:at]).encode()

    def end(self) -> bytes:
        """Return the visible rest at the end of the data."""
        return visible(self._held + self._decoder.decode(b"", final=True)).encode()
