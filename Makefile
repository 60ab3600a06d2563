# Everything a bare machine needs: Python 3.11 or newer with pip, make, git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= runs/quickstart
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
CONSTRAINTS := $(wildcard constraints/python$(VERSION).txt)

.PHONY: help quickstart gallery laws settings errata test test-all lint-docs slow parity resolve gpu-programs test-slurm browser notebooks docs lint format constraints release-check clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

quickstart: $(VENV)/.installed  ## train a small sweep of models, fit laws to it, decide, report
	$(BIN)/moejax study --config=configs/studies/quickstart.py --out $(OUT)

gallery: $(VENV)/.installed  ## draw every named figure into docs/gallery.md
	rm -f docs/gallery/*.png docs/gallery.md && $(BIN)/moejax plot --gallery docs

laws: $(VENV)/.installed  ## write a page for every law into docs/laws
	$(BIN)/moejax laws --pages docs

settings: $(VENV)/.installed  ## write the reference pages of config files, of commands and of Python names
	$(BIN)/python -m moejax.reference.settings && $(BIN)/python -m moejax.reference.api && $(BIN)/python -m moejax.cli.reference

errata: $(VENV)/.installed  ## write docs/errata.md: what does not follow in the five documents
	rm -f docs/errata.md && $(BIN)/moejax reproduce --errata docs/errata.md

test: $(VENV)/.installed  ## lint, types and the whole test suite, but what takes minutes
	@$(MAKE) --no-print-directory lint > $(VENV)/lint.log 2>&1 & lint=$$!; failed=0; \
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -r s || failed=1; \
	wait $$lint || failed=1; cat $(VENV)/lint.log; exit $$failed

test-all:  ## every suite there is, each where this machine can run it; hours
	$(MAKE) test lint-docs slow parity resolve gpu-programs notebooks
	@if command -v chromium chromium-browser google-chrome >/dev/null; then $(MAKE) browser; \
	  else echo "browser: left out, no Chromium is on the path."; fi
	@if launch/slurm-single-machine.sh check; then $(MAKE) test-slurm; else echo "test-slurm: left out."; fi

lint-docs: $(VENV)/.installed  ## whether pages link to what is there, and show commands, targets and names that exist
	$(BIN)/pytest -q -m docs $$(grep -rl 'mark\.docs' tests)

# The slow tests in parts of about the same length, each in processes of its own.
SLOW_PARTS ?= $(addsuffix /16,0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)

slow: $(VENV)/.installed  ## the tests that take minutes; some of them with SLOW_PARTS=2/16
	failed=0; for part in $(SLOW_PARTS); do $(BIN)/pytest -n 2 -r s -m slow --part $$part || failed=1; done; exit $$failed

parity: $(VENV)/.parity $(VENV)/.engines  ## our models against Hugging Face transformers, our manifests against schemas
	$(BIN)/pytest -n 2 -m parity tests/parity

resolve: $(VENV)/.installed  ## whether pip finds versions for every extra with every file of constraints (asks the package index)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet uv
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -m resolve -r s tests/test_constraints.py

gpu-programs: $(VENV)/.cuda  ## programs compiled for GPUs that are not here: which kernels they call (installs 5 GB)
	JAX_PLATFORMS=cpu $(VENV)/cuda/bin/pytest -m gpu_programs -r s --durations 0 \
	  tests/plan/test_gpu_programs.py tests/kernels/test_jax_triton.py

test-slurm: $(VENV)/.installed  ## a study on a real Slurm, brought up for it on this machine (root, Debian)
	$(BIN)/pytest -m slurm -r s --durations 0 tests/study/test_slurm.py

browser: $(VENV)/.browser  ## the explorer in a real Chromium, without a screen
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { echo "No Chromium is on the path: apt-get install chromium, or your system's way; then make browser."; exit 2; }
	$(BIN)/pytest -m browser -r s --durations 5 tests/explorer/test_explorer_in_a_browser.py

notebooks: $(VENV)/.notebooks  ## execute the notebooks and compare their outputs; WRITE=1 stores the new ones
	MOEJAX_WRITE_NOTEBOOKS=$(WRITE) $(BIN)/pytest -n 0 -m notebooks -r s --durations 3 tests/docs/test_notebooks.py

lint: $(VENV)/.installed  ## ruff and pyright
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright

format: $(VENV)/.installed  ## repair what ruff can repair
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs: $(VENV)/.docs  ## the site, into site/
	$(BIN)/zensical build

constraints: $(VENV)/.installed  ## write down the versions installed now, without addresses
	$(BIN)/pip freeze --exclude-editable | grep -v '@' > constraints/python$(VERSION).txt

# A wheel is used where there is no checkout: the check installs it into an environment of its own and runs there.
release-check:  ## build wheel and sdist into dist/, check them, install the wheel, run the quickstart's first minute
	rm -rf dist $(VENV)/release && $(PYTHON) -m venv $(VENV)/release/tools && $(PYTHON) -m venv $(VENV)/release/clean
	$(VENV)/release/tools/bin/python -m pip install --disable-pip-version-check --quiet build twine
	$(VENV)/release/tools/bin/python -m build --outdir dist .
	$(VENV)/release/tools/bin/twine check --strict dist/*
	$(VENV)/release/clean/bin/python -m pip install --disable-pip-version-check --quiet \
	  "$$(echo dist/*.whl)[cpu]" $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	mkdir $(VENV)/release/elsewhere && cd $(VENV)/release/elsewhere && ../clean/bin/moejax init && \
	  { timeout 60 ../clean/bin/moejax study --config=configs/studies/quickstart.py --out quickstart; \
	    status=$$?; test $$status -eq 75 -o $$status -eq 124 -o $$status -eq 0; } && \
	  ../clean/bin/moejax status quickstart && ls quickstart/models/*/*.jsonl

clean:  ## remove the environment
	rm -rf $(VENV)

# "pip install ." replaces the editable install by a copy, in which no change of the checkout is seen.
REPLACED := $(if $(wildcard $(VENV)/.installed),$(if $(wildcard $(VENV)/lib/python*/site-packages/_moejax.pth),,replaced))

.PHONY: replaced
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) $(REPLACED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "moejax needs Python 3.11 or newer; $(PYTHON) is $(VERSION). Name another: make PYTHON=python3.12 ..."; exit 2; }
	@echo "Installing into $(VENV): about 1 GB, usually a minute."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on \
	  -e '.[dev]' $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@

$(VENV)/.parity: $(VENV)/.installed constraints/parity.txt
	@echo "Installing PyTorch, transformers, lm-evaluation-harness, tokamax, wandb and MLflow's client into $(VENV): 1 GB in a build for CPUs; several where pip finds only CUDA's."
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on \
	  torch transformers accelerate lm-eval tokamax wandb mlflow-skinny sqlalchemy alembic -c constraints/parity.txt $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@

$(VENV)/.docs: $(VENV)/.installed constraints/docs.txt
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on \
	  -e '.[docs]' -c constraints/docs.txt $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@

$(VENV)/.notebooks: $(VENV)/.installed constraints/notebooks.txt
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on \
	  -e '.[notebooks]' -c constraints/notebooks.txt $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@

$(VENV)/.browser: $(VENV)/.installed constraints/browser.txt
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on \
	  playwright -c constraints/browser.txt $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@

$(VENV)/.engines: constraints/engines.txt
	@echo "Installing SkyPilot and Kubernetes' schemas into $(VENV)/engines, an environment of their own: 0.6 GB."
	$(PYTHON) -m venv $(VENV)/engines
	$(VENV)/engines/bin/python -m pip install --disable-pip-version-check --quiet -r constraints/engines.txt
	@touch $@

$(VENV)/.cuda: pyproject.toml constraints/cuda.txt constraints/parity.txt $(CONSTRAINTS)
	@echo "Installing JAX's CUDA wheels, tokamax and jax-triton into $(VENV)/cuda, an environment of their own: 5 GB. No GPU is needed."
	$(PYTHON) -m venv $(VENV)/cuda
	$(VENV)/cuda/bin/python -m pip install --disable-pip-version-check --progress-bar on \
	  -e '.[dev,cuda13,triton]' -c constraints/cuda.txt -c constraints/parity.txt $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@
