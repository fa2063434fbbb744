# Everything a developer types. Each target sets up what it needs in .venv the first time; a second call is quick.
#
#   make demo        real training on this CPU, and everything that matters in a night done to it (less than a minute)
#   make test        the tests (JOBS=2 for fewer at once; ARGS="-k lifecycle" goes to pytest)
#   make test-long   the tests that take minutes
#   make lint        ruff, mypy, shellcheck
#   make bench       what it costs, beside others, in one run
#   make clean       remove .venv and everything built

PYTHON ?= python3
JOBS ?= 6
ARGS ?=
VENV := .venv
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

# program:Debian package that brings it. Tests that need one that is not there are skipped and say so.
PROGRAMS := sshd:openssh-server ssh:openssh-client unshare:util-linux ps:procps script:bsdutils tmux:tmux \
  faketime:faketime chromium:chromium

.PHONY: demo test test-long lint bench clean programs
.DELETE_ON_ERROR:

demo: $(VENV)/.demo-ready
	$(VENV)/bin/overnight demo

test: $(VENV)/.test-ready programs
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-long: $(VENV)/.test-ready programs
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal -m long $(ARGS)

lint: $(VENV)/.lint-ready
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run; else echo "shellcheck is not here: skipped"; fi

# The peers have an environment of their own, so that nothing of theirs is needed or measured by accident.
bench: $(VENV)/.test-ready build/bench/peers/.ready
	$(VENV)/bin/python bench/run.py $(ARGS)

build/bench/peers/.ready: requirements/peers.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m venv build/bench/peers
	build/bench/peers/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/peers.txt
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find src tests examples bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, and $(PYTHON) is not: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.demo-ready: pyproject.toml requirements/demo.txt | $(VENV)/bin/python
	$(PIP) -r requirements/demo.txt -e '.[demo]'
	@touch $@

$(VENV)/.test-ready: requirements/test.txt $(VENV)/.demo-ready
	@echo "installing what the tests need (torch among it: this is long the first time)"
	$(PIP) -r requirements/test.txt
	@touch $@

$(VENV)/.lint-ready: requirements/lint.txt $(VENV)/.demo-ready
	$(PIP) -r requirements/lint.txt
	@touch $@

programs:
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=; \
	for pair in $(PROGRAMS); do command -v "$${pair%%:*}" >/dev/null || missing="$$missing $${pair#*:}"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Debian packages:$$missing"; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing; } \
	    >/dev/null || echo "could not; the tests that need them are skipped"; \
	else echo "not here:$$missing; the tests that need them are skipped"; fi
