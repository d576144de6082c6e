# make book   the book, executed afresh, in _build/html
# make test   every test (builds the book first when it is absent or older than its sources)
# Both need only Python >= 3.11 and make; everything else goes into .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

is_new_enough = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,python3 python3.11 python3.12 python3.13,\
            $(shell $(p) -c '$(is_new_enough)' 2>/dev/null && echo $(p))) python3)

# The stamp is named after the content of requirements.txt and is written last: neither an
# interrupted nor an outdated installation is ever taken for a finished one.
READY := .venv/ready-$(firstword $(shell cksum < requirements.txt))
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
PYTEST := $(PY) -m pytest

BUILT := _build/complete
SOURCES := _config.yml _toc.yml requirements.txt \
           $(shell find phasecore book notebooks -type f -not -path '*/.*' -not -name '*.pyc')

# One thread per process: results do not depend on the load of the machine, and two workers of
# pytest do not fight over two cores.
export OMP_NUM_THREADS ?= 1

.PHONY: help book test lower-bounds lint format bench mutations gpu-check strip refresh clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

$(READY):
	@$(PYTHON) -c '$(is_new_enough)' || { \
	  echo "phasecore needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "Name one that is: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	@echo "Installing requirements.txt in .venv: some minutes, about 2 GB without CUDA."
	$(PIP) install -r requirements.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	$(PIP) check
	touch $@

book: $(READY)  ## build the book from clean, executing every chapter; print where to open it
	rm -rf _build
	$(PY) -c 'import matplotlib.font_manager'  # its first import writes to stderr; not in a chapter
	.venv/bin/jupyter-book build . -W -n --keep-going
	touch $(BUILT)
	@echo; echo "The book: file://$(CURDIR)/_build/html/index.html"

$(BUILT): $(SOURCES)
	$(MAKE) book

test: $(READY) $(BUILT)  ## run every test
	$(PYTEST) -n logical --maxprocesses 8 --dist worksteal

# Without torch, of which old versions come as CUDA builds of several GB. Newer pyparsing warns in
# the oldest matplotlib, and warnings are errors.
lower-bounds:  ## test the theory at the lower bounds of pyproject.toml, in .venv-lower
	rm -rf .venv-lower
	$(PYTHON) -m venv .venv-lower
	.venv-lower/bin/python -m pip --disable-pip-version-check -qq install \
	  $$($(PYTHON) -c 'import tomllib as t; print(*[d.replace(">=", "==") \
	    for d in t.load(open("pyproject.toml", "rb"))["project"]["dependencies"]])') \
	  $$(grep -hE '^(pytest|hypothesis)==' requirements.txt) 'pyparsing<3.2'
	.venv-lower/bin/python -m pytest -q $(foreach part,problem baseline proximal channel \
	  statistics sampling measurement plotting,tests/test_$(part).py)

lint: $(READY)  ## check formatting, lint rules and types
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pyright --pythonpath $(PY)

format: $(READY)  ## let ruff rewrite the sources
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(READY)  ## time the solver and the trainer (never part of the tests)
	$(PYTEST) benchmarks --benchmark-only

mutations: $(READY)  ## break formulas on purpose, in a copy: each break must make a test fail
	$(PY) tests/mutations.py

gpu-check: $(READY)  ## compare CPU and CUDA, where there is a CUDA device
	$(PYTEST) -m gpu -s tests/test_gpu.py

strip: $(READY)  ## drop the outputs of the notebooks, except those that are checked
	$(PY) notebooks/tidy.py

refresh: $(READY)  ## execute the notebooks in place and keep the outputs that are checked
	$(PY) notebooks/tidy.py --execute

clean:  ## remove what make has made, .venv included
	rm -rf .venv .venv-lower _build .pytest_cache .ruff_cache .hypothesis .benchmarks *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
