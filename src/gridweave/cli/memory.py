"""Memory that is done with goes back to the system."""

from __future__ import annotations

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_LARGE_BYTES = 1 << 20


def give_back_large_arrays() -> None:
    """Have arrays of a megabyte and more go back to the system as soon as they are let go; for the command alone.

    Once a large array has been let go, glibc's malloc puts those of its size on the heap, up to 32 MB (mallopt(3),
    "M_MMAP_THRESHOLD"), and the heap can shrink only from its end, where small things are. The columns of a long trace
    come and go, and a third of the peak would be holes between them. Elsewhere than under glibc this does nothing.
    """
    import ctypes

    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    except (OSError, AttributeError, TypeError):  # no such function, or no such library
        return
