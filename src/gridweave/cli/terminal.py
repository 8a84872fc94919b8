"""What others have written, as a terminal may show it: without the control sequences that it would obey."""

from __future__ import annotations

import codecs
import re

_MOST_HELD = 4_096
"""Characters of a control sequence that has not ended; a longer one is shown as text."""

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, moves of the cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and the like: titles, links
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # others: resets, character sets
)
_BEGINS = re.compile(r"[\x1b\x90\x98\x9b\x9d-\x9f]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters, but for tabs and ends of lines (ECMA-48)."""


def visible(text: str) -> str:
    r"""Return a text without control sequences and characters.

    Examples
    --------
    >>> visible("a\x1b[31mred\x1b[0m\x07 \x1b]0;title\x07b")
    'ared b'
    """
    return text if text.isprintable() else _CONTROL.sub("", _SEQUENCE.sub("", text))


class VisibleBytes:
    r"""The same for bytes of UTF-8 that come in parts; what is no UTF-8 is shown as such.

    Examples
    --------
    >>> output = VisibleBytes()
    >>> [output.add(part) for part in (b"a\x1b[3", b"1mb", b"\xc3", b"\xa9")], output.end()
    ([b'a', b'b', b'', b'\xc3\xa9'], b'')
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # the beginning of a sequence that has not ended

    def add(self, data: bytes) -> bytes:
        """Return what a terminal may show so far of another part."""
        text = _SEQUENCE.sub("", self._held + self._decoder.decode(data))
        begun = _BEGINS.search(text)
        at = len(text) if begun is None or len(text) - begun.start() > _MOST_HELD else begun.start()
        self._held = text[at:]
        return visible(text[:at]).encode()

    def end(self) -> bytes:
        """Return what is left."""
        return visible(self._held + self._decoder.decode(b"", final=True)).encode()
