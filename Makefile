# Each target sets up .venv/ in the checkout first: `demo` with what the main job needs, the others with all extras.
PYTHON ?= python3
BIN := .venv/bin
# pip would compile all modules, which takes about as long as the rest: each is compiled, and kept, when it is imported.
INSTALL := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable
unexport PYTHONDONTWRITEBYTECODE
PEERS ?= .venv-peers

.PHONY: demo extras test slow chaos mutants kernels lint check docs docs-serve bits speed bench peers release

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $@

.venv/ready: .venv/demo
	$(INSTALL) '.[dev]'
	touch $@

# The main job: host and agent learn the polyhedra game; the result lies in runs/.
demo: .venv/demo
	$(BIN)/palestra train configs/dqn-polyhedra.yml

# All extras: every environment, recorder, network and model of the documents, and what the tests need.
extras: .venv/ready

# Side by side on all cores, the tests of a file in one process: they share what is slow to make. A process that dies, as
# for want of memory, ends them and names its test: started again, pytest-xdist waits for ever.
test: .venv/ready
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --max-worker-restart 0

# The proofs that take minutes: three seeds of the shipped training, many kills.
slow: .venv/ready
	$(BIN)/python -m pytest -m slow

# The proof by kill -9: every algorithm, killed at random moments, compared with runs that were left alone.
chaos: .venv/ready
	$(BIN)/python tests/chaos.py --kills 200
	$(BIN)/python tests/chaos_servers.py --kills 200
	$(BIN)/python tests/chaos_ranks.py --kills 50

# Do the tests notice what a careful engineer fears? Each of the mistakes in tests/mutants is made in a copy of the tree.
mutants: .venv/ready
	$(BIN)/python -m tests.mutants.run

# After a change of what a hand-written kernel stands in for: compares both, and renews the hashes if they agree.
kernels: .venv/ready
	$(BIN)/python -m tests.algorithms.kernels.renew

lint: .venv/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

check: lint test

.venv/docs: .venv/ready
	$(INSTALL) '.[docs]'
	touch $@

# The site: open build/site/index.html. Needs no network once the extra `docs` is installed.
docs: .venv/docs
	$(BIN)/python -m docs.website
	$(BIN)/python -m zensical build --clean --strict

# The same at http://localhost:8000, built again whenever a document is saved.
docs-serve: .venv/docs
	$(BIN)/python -m docs.website --serve

# Builds wheel and sdist into dist/, and tries both in new environments, as strangers do; takes up to 20 minutes.
release: .venv/ready
	$(BIN)/python tests/release.py

# Do two commits learn the same, to the bit? A folder is a working tree: make bits OLD=cfd467c NEW=main
OLD ?= HEAD
NEW ?= .
bits: .venv/ready
	$(BIN)/python -m benchmarks.same_bits $(OLD) $(NEW)

# Are two commits equally fast? Takes three quarters of an hour on a machine that does nothing else.
speed: .venv/ready
	$(BIN)/python -m benchmarks.same_speed $(OLD) $(NEW)

bench: .venv/ready
	$(BIN)/python -m benchmarks.polyhedra

# The libraries that benchmarks/peers and benchmarks/learning measure palestra beside, in an environment of their own:
# .venv-peers, or where PEERS says, with a link at .venv-peers. RLlib, which wants another gymnasium, has one beside it.
peers: $(PEERS)/ready $(PEERS)-rllib/ready
	test -e .venv-peers/ready || ln -sfn $(abspath $(PEERS)) .venv-peers

$(PEERS)/ready: benchmarks/peers/constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/peers/constraints.txt
	touch $@

$(PEERS)-rllib/ready: benchmarks/peers/rllib.txt
	$(PYTHON) -m venv $(PEERS)-rllib
	$(PEERS)-rllib/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/peers/rllib.txt
	touch $@
