# `make demo` and `make test` install what they need; the second run of either skips that.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-network lint format clean chromium docs release-check

demo: $(VENV)/installed
	$(BIN)/ffl demo --resume

test: $(VENV)/installed-for-test lint chromium
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup --hypothesis-profile ci -m "not gpu and not network_full"

test-network: $(VENV)/installed-for-test
	OMP_NUM_THREADS=1 FFL_RESULTS=results/network $(BIN)/pytest -n 1 --dist loadgroup -m network_full tests/silo tests/simulate

lint: $(VENV)/installed-for-test
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/installed-for-test
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix .

# The tests of the page need Chromium, and on a bare machine libatomic1, which Playwright needs. Both are installed from
# Debian where that is possible; elsewhere these tests are skipped.
CHROMIUM := apt-get install -qq --no-install-recommends chromium fonts-dejavu-core libatomic1
chromium: $(VENV)/installed-for-test
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null && \
		$(BIN)/playwright --version >/dev/null 2>&1 || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive && \
		{ $(CHROMIUM) || { apt-get update -qq && $(CHROMIUM); }; } >/dev/null 2>&1; } || \
		echo "Chromium is missing and cannot be installed here: the tests in a browser will be skipped."

# The documentation site, in site/. A broken link or reference ends the build.
docs: $(VENV)/installed-for-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

# Builds the wheel, installs it into an empty environment and runs the demo from there.
release-check: $(VENV)/installed-for-release
	rm -rf dist && $(BIN)/python -m build -q && $(BIN)/twine check --strict dist/*
	rm -rf dist/venv && $(PYTHON) -m venv dist/venv && dist/venv/bin/pip install -q dist/*.whl
	cd dist && venv/bin/ffl --version && venv/bin/ffl demo --out demo && rm -rf venv

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "factorized-fl needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install -q -e .
	@touch $@

$(VENV)/installed-for-test: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install -q -e '.[test]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-for-docs: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install -q -e '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-for-release: | $(BIN)/pip
	$(BIN)/pip install -q build twine
	@touch $@
