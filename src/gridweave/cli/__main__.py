"""``python -m gridweave.cli`` runs the command if its script is not installed."""

from gridweave.cli.main import run

run()
