"""``python -m gridweave.cli``: the command, where no script is installed."""

from gridweave.cli.main import run

run()
