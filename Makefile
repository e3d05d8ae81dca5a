# One-word commands; `make` alone lists them. A fresh machine needs Python 3.11 to 3.14, git and make, nothing else.

# The interpreter that the environment is built from; empty: the first usable one of PYTHONS.
PYTHON ?=
PYTHONS := python3.14 python3.13 python3.12 python3.11 python3
PIPENV_VERSION := 2026.10.3
# Debian's names of what the tests of windows use: an X server, software OpenGL, a keyboard; what MuJoCo draws with where
# there is no window; a browser for the page; the server of shared stores; and what reads shell scripts.
TEST_PACKAGES := xvfb libgl1 libgl1-mesa-dri libglx-mesa0 libglu1-mesa libegl1 xdotool imagemagick \
    chromium-headless-shell postgresql shellcheck
DEMO := train_policy_with_preferences MovingDotNoFrameskip-v0 --synthetic_prefs

# Where tests that need no process are; those of the other folders do need some.
QUICK := $(addprefix tests/,project networks queries training labelling envs test_pref_db.py test_reward_predictor.py \
    test_pref_interface.py commands/test_config.py)

# .venv holds the project's packages; pipenv and what it needs stay apart from them in .tools.
VENV_PYTHON := .venv/bin/python
READY := .venv/ready
LOG := .tools/setup.log

.PHONY: help setup demo test quick check format bench chaos docs test-packages
.DEFAULT_GOAL := help
# Each process of the tests would else compile every file of ours again.
unexport PYTHONDONTWRITEBYTECODE

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## create .venv with every package at its exact version (the others do it when needed)

demo: $(READY) ## teach the moving dot from a synthetic teacher's preferences, with no window
	@$(VENV_PYTHON) run.py $(DEMO) --run_name "demo-$$(date +%Y%m%d-%H%M%S)"

test: $(READY) ## run the tests, three at a time: most of them wait more than they compute
	@command -v Xvfb >/dev/null && command -v xdotool >/dev/null && command -v import >/dev/null \
	    && { command -v chromium-headless-shell || command -v chromium; } >/dev/null \
	    && ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 \
	    && command -v shellcheck >/dev/null || { \
	    echo "Xvfb, xdotool, ImageMagick, Chromium, PostgreSQL or ShellCheck is missing, so the tests that need it will be skipped; on Debian:"; \
	    echo "    apt-get install $(TEST_PACKAGES)"; }
	@$(VENV_PYTHON) -m pytest --numprocesses 3 --dist loadgroup

quick: $(READY) ## run the tests of the parts that need no process, window or browser
	@$(VENV_PYTHON) -m pytest --quick --numprocesses 2 --quiet $(QUICK)

check: $(READY) ## check lint, formatting and types
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy .

format: $(READY) ## format the code and sort its imports
	@$(VENV_PYTHON) -m ruff check --select I --fix .
	@$(VENV_PYTHON) -m ruff format .

bench: $(READY) ## measure speed and memory, beside other implementations (about an hour; installs those)
	@$(VENV_PYTHON) -m benchmarks.speed.bench --peers

chaos: $(READY) ## attack processes, files, flags and the label server (20 minutes, on Linux), to results/chaos.json
	@$(VENV_PYTHON) -m benchmarks.chaos

docs: $(READY) ## build the documentation as a site in site/
	@NO_MKDOCS_2_WARNING=1 $(VENV_PYTHON) -m mkdocs build --quiet --config-file .ci/mkdocs.yml && echo "Open site/index.html"

test-packages:
	@echo $(TEST_PACKAGES)

# The stamp is written last and lives in .venv, which is always built anew: an interrupted set-up is never taken
# for a finished one. PIP_CONSTRAINT is relative because pip splits it at spaces, which a folder's name may hold. pip
# would compile 23,000 files, which takes as long as all else: those that every run imports are enough.
$(READY): Pipfile constraints.txt
	@set -e; \
	python=; \
	for candidate in $(or $(PYTHON),$(PYTHONS)); do \
	    if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "No Python 3.11 to 3.14 found as $(or $(PYTHON),$(PYTHONS)): install one, or name one with 'make PYTHON=/path/to/python3 ...'." >&2; \
	    exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python cannot create virtual environments: install its venv module (Debian: 'apt install python3-venv')." >&2; \
	    exit 1; \
	fi; \
	run() { "$$@" >>$(LOG) 2>&1 || { tail -n 30 $(LOG) >&2; echo "Set-up failed; the whole log is in $(LOG)." >&2; exit 1; }; }; \
	echo "[1/3] Creating .venv and .tools with $$python (about 10 seconds)"; \
	rm -rf .venv .tools; mkdir .tools; \
	run $$python -m venv .tools; \
	run $$python -m venv .venv; \
	export PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_COMPILE=0; \
	export PIPENV_VENV_IN_PROJECT=1 PIPENV_IGNORE_VIRTUALENVS=1 PIPENV_NOSPIN=1; \
	echo "[2/3] Installing pipenv $(PIPENV_VERSION) in .tools (about 10 seconds)"; \
	run .tools/bin/python -m pip install pipenv==$(PIPENV_VERSION); \
	echo "[3/3] Installing the Pipfile's packages in .venv (1 to 10 minutes: PyTorch is large; log: $(LOG))"; \
	run .tools/bin/python -m pipenv install --dev --skip-lock; \
	run $(VENV_PYTHON) -c 'import run, torch.utils.tensorboard, matplotlib.figure'; \
	touch $(READY)
