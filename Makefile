# make demo    organisations align, choose partners and train over columns they never share
# make test    the tests on all cores
# make test-all  the same, and the longer ones: over FLARE, the tutorial, notebooks, studies (minutes more)
# make coverage  the tests with line coverage, which must be 95 % (tracing takes half as long again)
# make check   ruff and mypy --strict
# make bench   ratios, measured side by side in one run
# make fuzz    200,000 mutated frames and mutated ciphertexts against the decoder (minutes)
# make attack  every promise of SECURITY.md, attacked: relay, driver, candidate, client (minutes)
# make audit   how old the pins of constraints.txt are, and with pip-audit their known holes
# make docs    the site, in docs/_build; a warning, a dead link or an undocumented name fails it
# make format  rewrite the sources in the house format
#
# Each needs only Python (3.11 to 3.13) and make: the environment is made in .venv on first use.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all coverage check bench fuzz attack audit docs format clean

demo: $(READY)
	$(BIN)/colonnade demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

coverage: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --cov --cov-report=term

test-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m ""

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/colonnade bench

fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.wire --frames 200000
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.ciphertexts

attack: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attack

audit: $(READY)
	$(BIN)/python -m tests.pins

docs: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -E -W -n --keep-going -q docs docs/_build
	@echo "Open docs/_build/index.html"

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Torch first and pinned: its newest build on some platforms drags in gigabytes that a CPU does not need.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,docs,dev]"
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .coverage demo-run docs/_build
