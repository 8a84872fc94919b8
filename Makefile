# Everything a newcomer needs: `make demo` shows a grid at work, `make test` runs all tests. Both make their environment.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test test-compose check format bench clean

demo: $(VENV)/installed-live
	PATH="$(abspath $(BIN)):$$PATH" examples/demo.sh out/demo

# A worker that dies is not replaced: with --dist loadfile pytest-xdist may wait for the new one without end
# (pytest-dev/pytest-xdist#784). So the run fails soon, and names the test.
test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 4 --dist loadfile --max-worker-restart 0

# The failure drills, against a grid in containers: needs a Docker engine, and root (docs/compose.md).
test-compose: $(VENV)/installed-dev
	GRIDWEAVE_DRILLS=1 $(BIN)/python -m pytest -o faulthandler_timeout=1600 tests/compose

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/grid_growth.py
	$(BIN)/python benchmarks/world.py
	$(BIN)/python benchmarks/lomarc.py
	$(BIN)/python benchmarks/self_tuning.py
	$(BIN)/python benchmarks/optimum.py
	$(BIN)/python benchmarks/gang.py
	$(BIN)/python benchmarks/dfrs.py
	$(BIN)/python benchmarks/netmodel.py
	$(BIN)/python benchmarks/netmodel_batch.py
	$(BIN)/python benchmarks/journal.py
	$(BIN)/python benchmarks/processes.py
	[ $$(id -u) != 0 ] || $(BIN)/python benchmarks/launchers.py
	$(BIN)/python benchmarks/live_baselines.py
	$(BIN)/python benchmarks/live_scenarios.py
	$(BIN)/python benchmarks/sharing_live.py

clean:
	rm -rf $(VENV) build dist out src/gridweave.egg-info papers/build papers/src/gridweave_papers.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gridweave needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/installed-live: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[live]'
	touch $@ $(VENV)/installed

$(VENV)/installed-dev: pyproject.toml papers/pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --editable ./papers
	touch $@ $(VENV)/installed $(VENV)/installed-live
