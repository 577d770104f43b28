# Two commands do everything on a machine with python3, venv and make: `make lab` and `make test`.

PYTHON ?= python3
LAB_ARGS ?=
TIMES ?= 1

VENV := .venv
BIN := $(VENV)/bin
# The stamp holds, a line each, the folder and the extras that the last installation was for.
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help lab test test-all fast format lint types unit sweeps sweep workers faults doctests notebooks browser
.PHONY: coverage mutants wheel site course-installed test-installed whole-installed site-installed
# The steps of `test` run in the order in which they are listed, also under `make -j`.
.NOTPARALLEL:

STARTED := $(shell date +%s)
PYTEST = $(BIN)/python -m pytest -q -rs --durations=10 --durations-min=2 -p no:nbval
# Two files at a time, each in a process of its own: two cores, or tests that mostly wait.
TWO := -n 2 --dist loadfile

help:
	@echo 'make lab         open JupyterLab on a working copy of the lessons (LAB_ARGS=--no-browser passes on)'
	@echo 'make test        lint types unit sweeps workers doctests notebooks browser: a quarter of an hour on two cores'
	@echo 'make test-all    the same with whole tables and series, gloo for all, every lesson in the browser'
	@echo 'make fast        lint, types and unit: what to run while editing'
	@echo 'make format      rewrite the code in the one format'
	@echo 'make mutants     over a hundred deliberate faults, and which fast test notices each'
	@echo 'make coverage    make test, with the lines and branches that it runs'
	@echo 'make sweep       the sweeps whole: all samples, 10,000 random programs; more than an hour on two cores'
	@echo 'make faults      the fault suite alone, TIMES=20 times in a row, up to the first failure'
	@echo 'make site        the lessons, the reference and all other pages as a site, in build/site'
	@echo 'make wheel       build the wheel, install it into an empty environment, run lesson 00 there'
	@echo 'make lint | types | unit | sweeps | workers | doctests | notebooks | browser    one step of make test, in this order'
	@echo 'The first of them creates .venv. PYTHON=python3.12 chooses another Python (3.11 or newer).'

lab: course-installed
	@$(BIN)/python -m course lab $(LAB_ARGS)

STEPS := lint types unit sweeps workers doctests notebooks browser

test: $(STEPS)
	$(call heading,everything passed)

# tests/extent.py reads it: each test that carries the marker `whole`, and all of what the others draw a part of.
test-all: export TINYSHARD_TESTS = whole
test-all: whole-installed $(STEPS)
	$(call heading,everything passed$(comma) whole)

fast: lint types unit

format: test-installed
	@$(BIN)/python -m ruff check --fix --quiet . || true
	@$(BIN)/python -m ruff format .

lint: test-installed
	$(call heading,lint: ruff check and ruff format)
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .

types: test-installed
	$(call heading,types: mypy)
	@$(BIN)/python -m mypy

unit: test-installed
	$(call heading,unit tests: no worker processes)
	@$(PYTEST) $(TWO) tests --ignore=tests/workers --ignore=tests/browser --ignore=tests/sweeps

# torch's op database, torch.nn, random programs, held against plain torch: a drawn part, in test-all a larger one, in
# sweep everything; on two cores at once.
sweep: export TINYSHARD_TESTS = sweep
sweeps sweep: test-installed
	$(call heading,$@: op database$(comma) torch.nn$(comma) random programs)
	@$(PYTEST) -n 2 --dist loadgroup tests/sweeps

# Transport, deaths and interrupts depend on how devices reach each other; test-all runs all the others on gloo too.
test-all: ON_GLOO := -m "not alone"
ON_GLOO := -m "on_gloo and not alone"

workers: test-installed
	$(call heading,worker tests: real processes)
	@$(PYTEST) $(TWO) -m "not alone" tests/workers
	$(call heading,worker tests that need the machine for themselves)
	@$(PYTEST) -m alone tests/workers
	$(call heading,worker tests on gloo)
	@TINYSHARD_COLLECTIVES=gloo $(PYTEST) $(TWO) $(ON_GLOO) tests/workers

# What must not hang, leave anything behind, or let anybody in. All of it is in `workers`, too.
FAULTS := $(patsubst tests/workers/%.py,%,$(wildcard tests/workers/test_fa*.py))
FAULTS += test_pool test_pool_endings test_forked_children test_memory test_bad_input test_holdable test_hosts

faults: test-installed
	$(call heading,the fault suite: $(TIMES) times)
	@for pass in $$(seq $(TIMES)); do \
		echo "== pass $$pass of $(TIMES)"; \
		$(PYTEST) -x $(FAULTS:%=tests/workers/%.py) && \
			TINYSHARD_COLLECTIVES=gloo $(PYTEST) -x -m on_gloo tests/workers/test_fa*.py || exit 1; \
	done

doctests: test-installed
	$(call heading,doctests: the examples in the docstrings)
	@$(PYTEST) $(TWO) --doctest-modules tinyshard course

notebooks: test-installed
	$(call heading,notebooks: each lesson once; then corrupted copies of what it stored)
	@$(PYTEST:no:nbval=tests.notebooks.corrupted) $(TWO) --nbval --nbval-current-env \
		--nbval-cell-timeout=120 --nbval-sanitize-with=tests/notebooks/sanitize.cfg notebooks

browser: test-installed
	$(call heading,browser: lessons in JupyterLab; skipped where there is no Chromium)
	@$(PYTEST) tests/browser

# The lines and branches that the tests run, in worker processes and kernels too, as far as they live to say so. What fails
# because it is measured, as a test that allows a program no line on stderr does, is counted all the same.
coverage: export PYTHONPATH = $(CURDIR)
coverage: export COVERAGE_RCFILE = $(CURDIR)/pyproject.toml
coverage: export COVERAGE_FILE = $(CURDIR)/.coverage
coverage: test-installed
	@rm -f .coverage .coverage.*
	@$(MAKE) --keep-going $(filter-out lint types,$(STEPS)) \
		PYTEST='$(BIN)/python -m coverage run -m pytest -q -rs -p no:nbval -o faulthandler_timeout=0' || true
	$(call heading,coverage)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report --ignore-errors --precision=2 --skip-covered --sort=miss

# Part of `unit` in test-all; the workflow that publishes runs it alone.
wheel: export TINYSHARD_TESTS = whole
wheel: test-installed
	$(call heading,the wheel in an empty environment)
	@$(PYTEST) tests/course/test_wheel.py

# All that is wrong is a warning, and a warning ends it with an error. Devices in this process: nothing is run.
site: export TINYSHARD_RUNTIME = local
site: site-installed
	$(call heading,the site)
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c site -d build/site-cache . build/site
	@echo 'open build/site/index.html'

mutants: test-installed
	$(call heading,mutants: deliberate faults$(comma) each noticed by a fast test)
	@$(BIN)/python -m tests.mutants

course-installed: $(BIN)/pip
	$(call install,course)

test-installed: $(BIN)/pip
	$(call install,course$(comma)test)

whole-installed: $(BIN)/pip
	$(call install,course$(comma)test$(comma)models$(comma)site)

site-installed: $(BIN)/pip
	$(call install,course$(comma)site)

$(BIN)/pip:
	$(call heading,making $(VENV))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'this Python cannot be used'; \
		echo "  got:  $(PYTHON): $$($(PYTHON) --version 2>&1)"; \
		echo '  rule: Python 3.11 or newer'; \
		echo '  try:  make lab PYTHON=python3.12'; \
		exit 1; } >&2
	@$(PYTHON) -m venv --clear $(VENV) || { \
		echo 'the virtual environment could not be made'; \
		echo '  got:  the message above, from $(PYTHON) -m venv'; \
		echo '  rule: the modules venv and ensurepip are needed'; \
		echo '  try:  install the package of your system that holds them, such as python3-venv'; \
		rm -rf $(VENV); \
		exit 1; } >&2

comma := ,

define heading
@echo; echo "== $(1) (after $$(( $$(date +%s) - $(STARTED) )) s)"
endef

# install,<extras>: nothing where the stamp covers them, is newer than pyproject.toml and was made in this folder.
define install
@covered=yes; \
for line in '$(CURDIR)' $(subst $(comma), ,$(1)); do \
	grep -qxF "$$line" $(STAMP) 2>/dev/null || covered=no; \
done; \
if [ $$covered = no ] || [ pyproject.toml -nt $(STAMP) ]; then \
	echo; echo '== installing tinyshard[$(1)] into $(VENV)'; \
	echo 'The first time takes some minutes and 1.5 GB of disk. On Linux, where pip chooses torch for CUDA, it takes several'; \
	echo 'GB more: README.md says how to have torch for CPUs. Ctrl-C stops it; the same command goes on.'; \
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[$(1)]' && \
	printf '%s\n' '$(CURDIR)' $(subst $(comma), ,$(1)) > $(STAMP); \
fi
endef
