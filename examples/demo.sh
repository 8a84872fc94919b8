#!/usr/bin/env bash
# A whole grid on this machine, real jobs on it, and what the simulation says beside: gridweave demo.
# Usage: examples/demo.sh [FOLDER]      (gridweave must be on the PATH, with its part `live`; `make demo` sees to that)
# exec: who interrupts this interrupts the demonstration itself, which leaves nothing behind.
exec gridweave demo "${1:-out/demo}"
