# The commands of the project. `make demo` and `make test` need nothing but python3 (3.11 or newer) and the network once, for the packages.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Two workers: the tests start real processes, and more of them than cores only makes each one late.
TEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check static ruff mypy imports lint drawn diagram promised promises model simulate planted mutants coverage compare bench microbench scale matrix kills soak certify clean

help:  ## say what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */  make \1\t/'

# A stamp is written last, so an interrupted installation is done again.
$(VENV)/.test: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,dev]'
	@touch $@

demo: $(VENV)/.test  ## kill a worker between the charge and its answer, and count the charges
	$(BIN)/settled demo

test: $(VENV)/.test  ## run the tests
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadgroup

static: ruff mypy imports lint promised drawn  ## every check that runs no test

ruff: $(VENV)/.dev
	$(BIN)/ruff check .

# Each folder of examples is a program of its own, checked where it runs: two of them have an app.py.
mypy: $(VENV)/.dev
	$(BIN)/mypy
	for each in examples $(wildcard examples/*/); do \
		(cd $$each && MYPYPATH=$(CURDIR)/lib:$(CURDIR)/worker:$(CURDIR)/cli $(CURDIR)/$(BIN)/mypy \
			--config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache *.py) || exit 1; \
	done

imports: $(VENV)/.dev
	$(BIN)/lint-imports

lint: $(VENV)/.dev
	$(BIN)/python tools/lint.py

promised: $(VENV)/.dev
	$(BIN)/python tools/promises.py --check

drawn: $(VENV)/.dev
	$(BIN)/python tools/diagram.py --check

check: static test  ## what must be green before a change lands

promises: $(VENV)/.test  ## write docs/promises.md: each promise and the tests that show it
	$(BIN)/python tools/promises.py

model: $(VENV)/.test  ## search every state of the protocol in small bounds, and miss each of its rules
	$(BIN)/python -m tests.model.run

SEEDS ?= 2000
simulate: $(VENV)/.test  ## play the worker's own code under virtual time, and cut its power; SEEDS=100000 for a night
	$(BIN)/settled simulate --seeds $(SEEDS)

planted: $(VENV)/.test  ## plant bugs in the worker's own code, and see within how many simulated seeds each is found (minutes)
	$(BIN)/python -m tests.worker.planted $(or $(SEEDS_EACH),60)

MUTANTS ?=
mutants: $(VENV)/.dev  ## change the decisions and the guarded writer one by one, and see which change no test misses (hours); MUTANTS=settled.core.guarantee* for a part
	$(BIN)/python tools/mutants.py $(MUTANTS)

coverage: $(VENV)/.dev  ## print the branch coverage of core/ and store/ by the tests of core, store, steps and worker by hand
	$(BIN)/coverage run --branch --source=lib/settled/core,lib/settled/store -m pytest -q tests/lib/core tests/lib/store tests/lib/steps tests/worker/test_pump.py tests/worker/test_reconcile.py
	$(BIN)/coverage report --show-missing --skip-covered

diagram: $(VENV)/.test  ## write docs/states.md from the transition table
	$(BIN)/python tools/diagram.py

bench: $(VENV)/.test  ## measure beside the floor, as a table and as bench.json; figures say nothing about another machine
	$(BIN)/python -m tests.bench.run --json bench.json

microbench: $(VENV)/.test  ## time the hot functions of core and store one by one
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,bench]'
	$(BIN)/python -m pytest tests/bench/micro_hot.py -p no:xdist -q --benchmark-columns=min,median,ops

scale: $(VENV)/.test  ## measure with 100,000 and 1,000,000 operations of each kind (half an hour)
	$(BIN)/python -m tests.bench.scale --json scale.json

matrix: $(VENV)/.test  ## kill at each point in each isolation against each destination, and count effects (ten minutes)
	$(BIN)/python -m tests.worker.matrix

kills: $(VENV)/.test  ## ten thousand attempts under random kills, and count what is left (fifteen minutes)
	$(BIN)/python -m tests.lib.execution.kills 10000

# SECONDS is a variable of bash: make only takes it where it was given.
soak: $(VENV)/.test  ## load under kills, freezes, full disks and long readers, counted at the destination; SECONDS=1800 for long
	$(BIN)/python -m tests.soak.run --seconds $(or $(SECONDS),60)

# In an environment of its own: what it is compared with brings its own libraries.
.venv-compare/.done: pyproject.toml
	test -x .venv-compare/bin/python || $(PYTHON) -m venv .venv-compare
	.venv-compare/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test,compare]'
	@touch $@

compare: .venv-compare/.done  ## play the same crashes on other systems, and write docs/compare.md
	.venv-compare/bin/python -m tests.compare.run --write

CERTIFY_FLAGS ?= --jobs 2
certify: $(VENV)/.test  ## certify the examples' contracts in every combination: hundreds of kills, many minutes, with progress
	cd examples/payments && ../../$(BIN)/settled certify app:refund_order --sandbox sandbox:Stripe $(CERTIFY_FLAGS) --output ../../build/certify/payments.html
	cd examples/caldav && ../../$(BIN)/settled certify app:book_appointment --sandbox sandbox:Calendar $(CERTIFY_FLAGS) --output ../../build/certify/caldav.html
	cd examples/mail && ../../$(BIN)/settled certify app:send_notice --sandbox sandbox:Mail $(CERTIFY_FLAGS) --output ../../build/certify/mail.html

clean:  ## remove what the commands above made
	rm -rf $(VENV) .venv-compare .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
