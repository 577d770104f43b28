# Two commands do everything on a machine with python3, venv and make: `make lab` and `make test`.

PYTHON ?= python3
LAB_ARGS ?=
TIMES ?= 1

VENV := .venv
BIN := $(VENV)/bin
# The stamp holds, a line each, the folder and the extras that the last installation was for.
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help lab test fast format lint types unit sweeps sweep workers faults doctests notebooks browser
.PHONY: course-installed test-installed
# The steps of `test` run in the order in which they are listed, also under `make -j`.
.NOTPARALLEL:

help:
	@echo 'make lab         open JupyterLab on a working copy of the lessons (LAB_ARGS=--no-browser passes on)'
	@echo 'make test        everything: lint types unit sweeps workers doctests notebooks browser'
	@echo 'make fast        lint, types and unit: what to run while editing'
	@echo 'make format      rewrite the code in the one format'
	@echo 'make sweep       the sweeps whole: all samples, 10,000 random programs; more than an hour on two cores'
	@echo 'make faults      the fault suite alone, TIMES=20 times in a row, up to the first failure'
	@echo 'make lint | types | unit | sweeps | workers | doctests | notebooks | browser    one step of make test, in this order'
	@echo 'The first of them creates .venv. PYTHON=python3.12 chooses another Python (3.11 or newer).'

lab: course-installed
	@$(BIN)/python -m course lab $(LAB_ARGS)

test: lint types unit sweeps workers doctests notebooks browser
	@echo; echo '== everything passed'

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
	@$(BIN)/python -m pytest -q -rs -n 2 --dist loadfile tests --ignore=tests/workers --ignore=tests/browser --ignore=tests/sweeps

# torch's op database, torch.nn, random programs, held against plain torch: a drawn part, on two cores at once.
SWEEP := -m pytest -q -n 2 --dist worksteal tests/sweeps

sweeps: test-installed
	$(call heading,sweeps: a drawn part; make sweep runs them whole)
	@$(BIN)/python $(SWEEP)

sweep: test-installed
	$(call heading,sweeps: whole)
	@TINYSHARD_SWEEP=whole $(BIN)/python $(SWEEP)

# What depends on how devices reach each other runs on gloo too; test_collectives.py chooses both by itself.
ON_GLOO := test_counts test_lax_gloo test_expressions_gloo test_network_gloo test_replicated_check test_transfers_gloo
ON_GLOO += test_failures test_faults_deaths test_faults_interrupts test_faults_memory test_faults_random test_faults_stalls

workers: test-installed
	$(call heading,worker tests: real processes)
	@$(BIN)/python -m pytest -q -rs tests/workers
	$(call heading,worker tests that exchange data: on gloo)
	@TINYSHARD_COLLECTIVES=gloo $(BIN)/python -m pytest -q -rs $(ON_GLOO:%=tests/workers/%.py)

# What must not hang, leave anything behind, or let anybody in. All of it is in `workers`, too.
FAULTS := $(patsubst tests/workers/%.py,%,$(wildcard tests/workers/test_fa*.py))
FAULTS += test_pool test_pool_endings test_forked_children test_memory test_bad_input_gloo test_holdable_real test_hosts

faults: test-installed
	$(call heading,the fault suite: $(TIMES) times)
	@for pass in $$(seq $(TIMES)); do \
		echo "== pass $$pass of $(TIMES)"; \
		$(BIN)/python -m pytest -q -x $(FAULTS:%=tests/workers/%.py) && TINYSHARD_COLLECTIVES=gloo \
			$(BIN)/python -m pytest -q -x $(patsubst %,tests/workers/%.py,$(filter test_fa%,$(ON_GLOO))) || exit 1; \
	done

doctests: test-installed
	$(call heading,doctests: the examples in the docstrings)
	@$(BIN)/python -m pytest -q --doctest-modules tinyshard course

notebooks: test-installed
	$(call heading,notebooks: each lesson once; then corrupted copies of what it stored)
	@$(BIN)/python -m pytest -q -p tests.notebooks.corrupted --nbval --nbval-current-env \
		--nbval-cell-timeout=120 --nbval-sanitize-with=tests/notebooks/sanitize.cfg notebooks

browser: test-installed
	$(call heading,browser: each lesson in JupyterLab; skipped where there is no Chromium)
	@$(BIN)/python -m pytest -q -rs tests/browser

course-installed: $(BIN)/pip
	$(call install,course)

test-installed: $(BIN)/pip
	$(call install,course$(comma)test)

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
@echo; echo '== $(1)'
endef

# install,<extras>: nothing where the stamp covers them, is newer than pyproject.toml and was made in this folder.
define install
@covered=yes; \
for line in '$(CURDIR)' $(subst $(comma), ,$(1)); do \
	grep -qxF "$$line" $(STAMP) 2>/dev/null || covered=no; \
done; \
if [ $$covered = no ] || [ pyproject.toml -nt $(STAMP) ]; then \
	echo; echo '== installing tinyshard[$(1)] into $(VENV); the first time takes minutes, most of them for torch'; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(1)]' && \
	printf '%s\n' '$(CURDIR)' $(subst $(comma), ,$(1)) > $(STAMP); \
fi
endef
