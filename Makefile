# serve, test and demo are all that a newcomer needs. Each installs what it needs into a virtual environment of this
# folder first.
PYTHON ?= python3
VENV ?= .venv
CLIENTS ?= .venv-clients
PLAIN ?= .venv-plain
CONFIG ?= config.local.yaml
BUILDER ?= $(if $(shell docker info >/dev/null 2>&1 && echo runs),docker,buildah)
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check --require-hashes
# Every test that starts a proxy would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n auto

.PHONY: serve demo test test-all rest plain clients coverage lint check format lock bench docs image clean

serve: $(VENV)/.serve $(CONFIG)  ## start the proxy; its settings are in config.local.yaml
	@trap : INT; $(BIN)/accordion serve --config $(CONFIG) || test $$? -eq 130

demo: $(VENV)/.serve             ## show in half a minute what it does, without a key
	@trap : INT; $(BIN)/accordion demo || test $$? -eq 130

test: $(VENV)/.test              ## the quick tests: what needs Python only
	$(PYTEST) --tier quick

test-all: test rest              ## all tests

rest: $(VENV)/.dev               ## the tests that `make test` leaves out
	@$(PYTHON) scripts/test_programs.py
	$(PYTEST) --dist loadfile --no-loadscope-reorder --tier rest -rs
	$(MAKE) plain clients

plain: $(VENV)/.test $(PLAIN)/.installed     ## the tests of the package as it is installed without extras
	$(BIN)/python -m pytest tests/plain

clients: $(VENV)/.test $(CLIENTS)/.installed ## the tests of clients that nobody here wrote
	$(CLIENTS)/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder tests/clients -q -rs

coverage: $(VENV)/.dev           ## the share of lines that `make test` covers
	$(PYTEST) --tier quick --cov=accordion --cov-report=term:skip-covered --cov-fail-under=85

lint: $(VENV)/.dev               ## style, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: lint test-all             ## everything

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.dev              ## measure; see bench/README.md
	$(BIN)/python -m bench

# A copy that git ignores, so that tuning does not change the repository.
config.local.yaml:
	@cp config.yaml $@

$(VENV)/bin/python:
	@echo "Installing into $(VENV); this takes a minute."
	@$(PYTHON) -m venv $(VENV)

INSTALL = @$(BIN)/python -m pip install $(PIP_FLAGS) -r $< && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .

$(VENV)/.serve: requirements.lock pyproject.toml | $(VENV)/bin/python
	$(INSTALL)
	@touch $@

$(VENV)/.test: requirements-test.lock pyproject.toml | $(VENV)/bin/python
	$(INSTALL)
	@touch $@ $(VENV)/.serve

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	$(INSTALL)
	@touch $@ $(VENV)/.test $(VENV)/.serve

$(CLIENTS)/.installed: tests/clients/requirements.lock
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install $(PIP_FLAGS) -r tests/clients/requirements.lock
	@touch $@

# Without hashes: pip does not accept a local package with them.
$(PLAIN)/.installed: requirements.lock pyproject.toml config.yaml $(shell find proxy -type f ! -name '*.pyc') | $(VENV)/.test
	rm -rf $(PLAIN)
	$(PYTHON) -m venv --without-pip $(PLAIN)
	sed -n '/^[a-z0-9]/s/ *\\$$//p' requirements.lock > $(PLAIN)/constraints.txt
	$(BIN)/python -m pip --python $(PLAIN)/bin/python install --quiet --disable-pip-version-check -c $(PLAIN)/constraints.txt .
	@touch $@

# Needs uv. No file names an index, so that the lock holds wherever the packages come from.
UV_COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
lock:
	$(UV_COMPILE) pyproject.toml --extra dev -o requirements-dev.lock
	$(UV_COMPILE) -c requirements-dev.lock pyproject.toml --extra test -o requirements-test.lock
	$(UV_COMPILE) -c requirements-dev.lock pyproject.toml --extra all -o requirements.lock
	$(UV_COMPILE) tests/clients/requirements.in -o tests/clients/requirements.lock

docs: $(VENV)/.dev               ## the tables of the reference, and the documentation as a site, in site/
	$(BIN)/python scripts/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

image:                           ## the container; EXTRAS=redis: only these extras, EXTRAS= : none
	$(BUILDER) build -t accordion $(if $(filter undefined,$(origin EXTRAS)),,--build-arg "EXTRAS=$(EXTRAS)") .

clean:
	rm -rf $(VENV) $(CLIENTS) $(PLAIN) tests/clients/.cache tests/clients/node/node_modules
