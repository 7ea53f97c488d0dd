# Each target sets up what it needs in .venv; nothing but Python 3.11+ and make is required.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := setup.cfg pyproject.toml

PYTEST := -m pytest --numprocesses auto --maxprocesses 4 --dist loadgroup

.PHONY: install demo quick test coverage trials mutants proofs browser-test lint bench clean

# Brokers, clients, simulation and benchmarks, in less than a minute. Reports need Spark: `make demo`.
install: .venv/.install

demo: .venv/.demo
	$(BIN)/padres-tx demo

# The tests that take less than about two seconds each, with fewer random runs: under two minutes on
# two cores. For use while you work; `make test` runs everything.
quick: .venv/.test
	$(BIN)/python $(PYTEST) -m "not slow" --seeds 200 $(ARGS)

# All tests, spread over the cores; those of one xdist_group stay together in one process. Less than
# 12 minutes on two quiet cores: what would take longer belongs to `proofs`.
test: .venv/.test
	$(BIN)/python $(PYTEST) $(ARGS)

# Branch coverage of all tests, broker processes included, twice as slow as `test`. Prints a figure
# for each package; the lines that are not covered are in build/coverage/html.
coverage: .venv/.test
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/python -m coverage run $(PYTEST) $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet
	@for package in overlay padres_tx; do \
	    echo "$$package: $$($(BIN)/python -m coverage report --include="$$package/*" --format=total) %"; \
	done

# Users' programs on real processes under bad luck, at full size: some minutes.
trials: .venv/.test
	$(BIN)/python -m tests.trials.handovers $(ARGS)
	$(BIN)/python -m tests.trials.rude_guest
	$(BIN)/python -m tests.trials.crashes

# Which small changes of the code no test notices, in a sample: some minutes. ARGS=--help for more.
mutants: .venv/.test
	$(BIN)/python -m tests.mutants $(ARGS)

# Some minutes, on a machine with nothing else to do. To commit to the figures, README included:
# padres-tx bench all --save --from build/bench.json
bench: .venv/.test
	$(BIN)/padres-tx bench all --out build/bench.json

# The report in a real browser; without one on the PATH (chromium) this fails, and `test` skips it.
browser-test: .venv/.test
	PADRES_TX_BROWSER=required $(BIN)/python -m pytest tests/bench/report/test_page.py $(ARGS)

# Specifications, traces and lemmas; all interleavings of small scenarios; many random runs.
proofs: .venv/.proofs
	$(BIN)/padres-tx prove
	$(BIN)/padres-tx explore --all
	$(BIN)/padres-tx explore --errata
	$(BIN)/padres-tx explore --links
	$(BIN)/padres-tx sim --engine all --seeds 1000 --faults all
	$(BIN)/padres-tx sim --engine all --seeds 400 --faults all --crowded --brokers 4 --transactions 6
	$(BIN)/padres-tx sim --engine all --seeds 200 --faults all,broker-crash,disk-full

lint: .venv/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy overlay padres_tx topologies bench proofs

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "padres_tx needs Python 3.11 or newer; pass PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv

.venv/.install: .venv/bin/python $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/.demo: .venv/bin/python $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[spark]'
	touch $@

.venv/.test: .venv/bin/python $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

.venv/.proofs: .venv/bin/python $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[proofs]'
	touch $@

.venv/.lint: .venv/bin/python $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test,lint]'
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
