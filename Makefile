# serve and test are all that a newcomer needs; both install what they need into a virtual environment of this folder.
PYTHON ?= python3
VENV ?= .venv
CLIENTS ?= .venv-clients
PLAIN ?= .venv-plain
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check --require-hashes

.PHONY: serve test unit clients plain lint check format lock bench docs image clean

serve: $(VENV)/.serve            ## install what is needed and start the proxy
	@$(BIN)/accordion serve

test: unit plain clients             ## all tests

unit: $(VENV)/.dev               ## the tests of this repository's own
	$(BIN)/python -m pytest -n auto

plain: $(VENV)/.dev $(PLAIN)/.installed      ## the tests of the package as it is installed without extras
	$(BIN)/python -m pytest tests/plain

clients: $(VENV)/.dev $(CLIENTS)/.installed  ## the tests of clients that nobody here wrote
	$(CLIENTS)/bin/python -m pytest tests/clients -q

lint: $(VENV)/.dev               ## style, types, floors
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: lint test                 ## everything

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.dev              ## measure; see bench/README.md
	$(BIN)/python -m bench

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: requirements.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install $(PIP_FLAGS) -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install $(PIP_FLAGS) -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@ $(VENV)/.serve

$(CLIENTS)/.installed: tests/clients/requirements.lock
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install $(PIP_FLAGS) -r tests/clients/requirements.lock
	@touch $@

# Without hashes: pip does not accept a local package with them.
$(PLAIN)/.installed: requirements.lock pyproject.toml config.yaml $(shell find proxy -type f ! -name '*.pyc') | $(VENV)/.dev
	rm -rf $(PLAIN)
	$(PYTHON) -m venv --without-pip $(PLAIN)
	sed -n '/^[a-z0-9]/s/ *\\$$//p' requirements.lock > $(PLAIN)/constraints.txt
	$(BIN)/python -m pip --python $(PLAIN)/bin/python install --quiet --disable-pip-version-check -c $(PLAIN)/constraints.txt .
	@touch $@

# Needs uv. No file names an index, so that the lock holds wherever the packages come from.
UV_COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
lock:
	$(UV_COMPILE) pyproject.toml --extra dev -o requirements-dev.lock
	$(UV_COMPILE) -c requirements-dev.lock pyproject.toml --extra all -o requirements.lock
	$(UV_COMPILE) tests/clients/requirements.in -o tests/clients/requirements.lock

docs: $(VENV)/.dev               ## the tables of the reference, and the documentation as a site, in site/
	$(BIN)/python scripts/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

image:                           ## the container
	docker build -t accordion .

clean:
	rm -rf $(VENV) $(CLIENTS) $(PLAIN) tests/clients/.cache tests/clients/node/node_modules
