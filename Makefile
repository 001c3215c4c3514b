# mailslice: two commands, `make run` and `make test`. `make help` lists the rest. DEBUG=1 shows where an error comes from.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv/bin
DEBUG_OPTION := $(if $(DEBUG),--debug)
LOCAL := $(VENV)/python -m stack $(DEBUG_OPTION)
SITE := NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build --strict --quiet
BOOTSTRAP := $(PYTHON) stack/bootstrap.py $(DEBUG_OPTION)
# A setup that failed half way has started nothing; one that failed as it was repeated may have left the system up.
INSTALLED := $(VENV)/python -c "import stack.__main__, stack.stack" 2>/dev/null
# By the environment and as it was written: a file's name is no word of make's, nor of the shell's.
export MAIL_ORIGIN := $(origin MAIL)
override export MAIL := $(value MAIL)
# Else each process compiles all that it loads: Great Expectations takes 8 s of CPU in place of 3.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run stop clean test soak bench lint format docs package lock

help: ## list these commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install only: system packages (as root), .venv, Java parts
	@$(BOOTSTRAP) && $(LOCAL) setup

run: setup ## start everything, enqueue and drain mail, clean the queue through Airflow, show the report (MAIL=folder, mbox or Maildir)
	@$(LOCAL) run

stop: ## end what `make run` and `make test` started in this clone, and only that
	@if $(INSTALLED); then $(LOCAL) stop; else echo "stop: nothing is installed in .venv that could run"; fi

clean: stop ## remove what they left: all state of both stacks (.venv, the Java parts and what .state/artifacts holds stay)
	@if $(INSTALLED); then $(LOCAL) clean; else rm -f .state/setup.log .state/setup.lock .state/uv.txt; fi
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .import_linter_cache .state/site

test: setup ## all tests but the long ones, with services of their own (ARGS="tests/unit -k slices" for some)
	@$(LOCAL) test $(ARGS)

soak: setup ## the long tests: clusters of three nodes, all faults at all crash points, ten minutes of a random walk, a browser (ARGS as for test)
	@$(BOOTSTRAP) --browser && $(LOCAL) soak $(ARGS)

bench: setup ## measure hot path, size and cleanup; a table and JSON
	@$(LOCAL) bench $(ARGS)

lint: setup ## ruff, mypy, import-linter, links of the docs, figures of stack/house.py
	@$(VENV)/ruff check . && $(VENV)/ruff format --check .
	@$(VENV)/mypy & types=$$!; \
		$(VENV)/lint-imports && $(SITE) && $(VENV)/python stack/house.py; rest=$$?; \
		wait $$types && exit $$rest

format: setup ## let ruff put the code in order
	@$(VENV)/ruff check --fix-only . && $(VENV)/ruff format .

docs: setup ## write the generated pages under docs/, and the site to .state/site
	@$(LOCAL) docs && $(SITE)

package: setup ## the sdist, the wheel and the versions that were tested into .state/dist, checked by twine
	@rm -rf .state/dist && $(VENV)/python -m build --no-isolation --outdir .state/dist . >.state/build.log 2>&1 \
		|| { tail -20 .state/build.log; exit 1; }
	@rm -rf include/mailslice.egg-info
	@$(VENV)/twine check --strict .state/dist/*
	@sed -e 's/ \\$$//' -e '/--hash/d' requirements.txt >.state/dist/constraints.txt

lock: setup ## pin requirements.txt and the jars anew (UPGRADE=1 takes newer versions)
	@$(VENV)/uv pip compile requirements.in -o requirements.txt --generate-hashes --universal --python-version 3.11 \
		--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) -q
	@$(LOCAL) lock
