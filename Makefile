# Everything a bare machine needs: Python 3.11 or newer with pip, make, git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= runs/quickstart
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
CONSTRAINTS := $(wildcard constraints/python$(VERSION).txt)

.PHONY: quickstart test slow referees lint format constraints clean

quickstart: $(VENV)/.installed  ## train a small sweep of models, fit laws to it, decide, report
	$(BIN)/moejax study --config=configs/studies/quickstart.py --out $(OUT)

test: lint  ## lint, types and the whole test suite, but what takes minutes
	$(BIN)/pytest -n 2 -r s

slow: $(VENV)/.installed  ## the tests that take minutes
	$(BIN)/pytest -m slow

referees: $(VENV)/.referees  ## our models against Hugging Face transformers in PyTorch
	$(BIN)/pytest -n 2 -m referee tests/referees

lint: $(VENV)/.installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright

format: $(VENV)/.installed
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

constraints: $(VENV)/.installed  ## write down the versions installed now, without addresses
	$(BIN)/pip freeze --exclude-editable | grep -v '@' > constraints/python$(VERSION).txt

clean:
	rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "moejax needs Python 3.11 or newer; $(PYTHON) is $(VERSION). Name another: make PYTHON=python3.12 ..."; exit 2; }
	@echo "Installing into $(VENV): about 1 GB, usually a minute."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on \
	  -e '.[dev]' $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@

$(VENV)/.referees: $(VENV)/.installed constraints/referees.txt
	@echo "Installing PyTorch and transformers into $(VENV): 1 GB in a build for CPUs; several where pip finds only CUDA's."
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on \
	  torch transformers -c constraints/referees.txt $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@
