# make run      set up .venv with torch on first use, climb the shipped ladder on this machine, say where the report is
# make watch    show the ladder that is climbing here, or (RESULTS=DIR) in another results directory
# make setup    set up .venv with the workflow alone, as a login node needs it: 0.4 GB, no torch (TRAINING=1 adds torch)
# make test     set up, run every test
# make quick    only the tests that start no Slurm, Snakemake, training or browser: for every day
# make oldest   set up .venv-oldest with the lowest versions of all packages, run a climb and the quick tests of what uses them
# make newest   set up a newer Debian in ~/.cache, as root, run those tests with its Python, without torch
# make lint     formatting, linting, types, that imports go one way; prints the lines of code of each package
# make docs     build the documentation into site/, links checked
# make schemas  write workflow/schemas/*.json from the models of the settings
# make lock     write requirements.lock from .venv (for newer versions delete .venv first)
# make example  write docs/example and the pictures of the docs: ladders and a training on a real Slurm on this machine, as root, 30 minutes
# make cluster  a shell on a real Slurm with fake GPUs, on this machine, as root (CLUSTER="--nodes 6 --gpus 4")
# make help     this text
#
# LOCKED=1                                           take the versions of requirements.lock, which CI tests
# TORCH_INDEX=https://download.pytorch.org/whl/cpu   take the CPU-only torch wheels (0.8 GB) instead of PyPI's CUDA ones (5 GB)
# PYTHON=python3.12                                  take another Python, 3.11 or newer

PYTHON ?= python3
TORCH_INDEX ?=
TRAINING ?=
LOCKED ?=
RESULTS ?=
CLUSTER ?= --accounting
VENV := .venv
# The newest versions are in $(VENV); the instrument's tests look for the oldest torch beside it.
OLDEST := .venv-oldest
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
PIP_INSTALL := bin/python -m pip --disable-pip-version-check install --quiet
# The packages of the workflow that use others, whose versions differ, and so does Python's. All code runs in `test`.
OF_VERSIONS := $(patsubst %,tests/unit/%,analysis climb common gates live measuring nodes records report run settings \
  test_versions.py) --ignore tests/unit/analysis/test_published_scaling.py
# With LOCKED=1 the marks of what is set up have names of their own: a .venv with other versions is not taken for it.
READY := ready$(if $(LOCKED),-locked)
CONSTRAINTS := $(if $(LOCKED),--constraint requirements.lock)
TORCH := $(if $(LOCKED),$$(grep -E '^torch(vision)?==' requirements.lock),torch torchvision)

.PHONY: run watch setup test quick oldest newest lint docs schemas lock example cluster help
.DELETE_ON_ERROR:

run: $(VENV)/.run-$(READY)
	@$(BIN)/snakemake --profile profiles/local

# It installs nothing where anything is set up: other versions serve as well, and another user cannot write.
watch: $(if $(wildcard $(VENV)/.workflow-ready*),,$(VENV)/.workflow-$(READY))
	@$(BIN)/python workflow/scripts/watch.py $(if $(RESULTS),--results $(RESULTS))

setup: $(VENV)/$(if $(TRAINING),.run-$(READY),.workflow-$(READY))
	@echo "$(VENV) is ready$(if $(TRAINING),, for the workflow; the training runs with software.python of config/cluster.yaml)."
	@echo "Next: source $(VENV)/bin/activate"

# Three at a time, as those on Slurm mostly wait; file by file, as the tests of a file share what they bring up.
test: $(VENV)/.test-$(READY)
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 40

quick: $(VENV)/.test-$(READY)
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m "not programs"

oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/pytest --quiet --numprocesses 2 --dist loadfile -m "not programs" $(OF_VERSIONS)
	$(OLDEST)/bin/pytest --quiet tests/workflow/test_climb.py

# Without CI=true: there is only what the workflow needs, and a test of other tools is skipped.
newest: | $(BIN)/python
	env -u CI $(BIN)/python tests/slurm/newer_debian.py \
	  pytest --quiet --numprocesses 2 --dist loadfile -m "not programs" $(OF_VERSIONS)

lint: $(VENV)/.test-$(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy
	PYTHONPATH=workflow/scripts $(BIN)/lint-imports
	$(BIN)/snakemake --lint
	$(BIN)/snakemake --snakefile workflow/Snakefile --lint
	@$(BIN)/python .ci/lines.py

docs: $(VENV)/.test-$(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "written: site/index.html"

lock: $(VENV)/.test-$(READY)
	@$(BIN)/python .ci/lock.py

schemas: $(VENV)/.workflow-$(READY)
	$(BIN)/python .ci/write_schemas.py workflow/schemas

example: $(VENV)/.test-$(READY)
	@$(BIN)/python benchmarks/example.py

cluster: $(VENV)/.run-$(READY)
	@$(BIN)/python tests/slurm/cluster.py shell $(CLUSTER)

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is missing: install Python 3.11 or newer (Debian and Ubuntu: apt-get install python3 python3-venv)," >&2; \
	  echo "or name another one: make run PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$$($(PYTHON) --version) is too old: the workflow needs Python 3.11 or newer; name one: make run PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks venv: install it (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.workflow-$(READY): requirements.txt $(if $(LOCKED),requirements.lock) | $(BIN)/python
	@echo "Setting up the workflow in $(VENV), once: 0.4 GB, about a minute"
	@$(VENV)/$(PIP_INSTALL) $(CONSTRAINTS) -r requirements.txt
	@touch $@

# torch comes first and from its own index, so that nothing else pulls in the CUDA wheels.
$(VENV)/.run-$(READY): requirements-training.txt $(VENV)/.workflow-$(READY)
	@echo "Adding torch to $(VENV), once: 5 GB from PyPI, a few minutes;"
	@echo "for the CPU-only wheels (0.8 GB): make $(MAKECMDGOALS) TORCH_INDEX=https://download.pytorch.org/whl/cpu"
	@test -z "$(TORCH_INDEX)" || $(VENV)/$(PIP_INSTALL) --index-url "$(TORCH_INDEX)" $(TORCH)
	@$(VENV)/$(PIP_INSTALL) $(CONSTRAINTS) -r requirements-training.txt
	@touch $@

$(VENV)/.test-$(READY): requirements-dev.txt $(VENV)/.run-$(READY)
	@$(VENV)/$(PIP_INSTALL) $(CONSTRAINTS) -r requirements-dev.txt
	@touch $@

$(OLDEST)/.ready: requirements-oldest.txt | $(BIN)/python
	@echo "Setting up $(OLDEST), once: 5 GB from PyPI, about a minute"
	@rm -rf $(OLDEST)
	@$(BIN)/python -m venv $(OLDEST)
	@test -z "$(TORCH_INDEX)" || $(OLDEST)/$(PIP_INSTALL) --index-url "$(TORCH_INDEX)" $$(grep '^torch' requirements-oldest.txt)
	@$(OLDEST)/$(PIP_INSTALL) -r requirements-oldest.txt
	@touch $@
