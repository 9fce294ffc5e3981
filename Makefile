# SPDX-License-Identifier: Apache-2.0
# What a person types here; `make setup` is done by the others where it is not done yet.
#
#   make setup   a virtual environment in .venv/, every dependency from the lock, Kafka's jars in .cache/
#   make demo    three brokers, their sidecars, and a throttled move to watch
#   make test    everything that CI runs: check, unit tests, tests of the Spark jobs, integration tests on real brokers
#   make check   format, lint, types, import layers
#   make spark   the tests of the Spark jobs, a part of them on Spark 3.5 too
#   make long    tests that compute for half a second or more, without a clock
#   make clients Kafka clients of other languages against the limits: those whose tools (go, npm, cargo, javac) are here
#   make kubernetes  the chart on an API server of Kubernetes, which Go builds (ten minutes the first time)
#   make fuzz    mutated frames at the cores of links: SECONDS=600 SEED=1
#   make bench   the long measurements
#   make release the wheel, the sdist, and a bill of materials with licences, in dist/
#   make lock    writes the lock files anew from pyproject.toml
#
# Needed: Python 3.11 or newer with venv (make PYTHON=python3.13 ... names one), Java 17 or newer, and the package
# registries (through pip, and Maven or the Ivy inside PySpark).

SHELL := /bin/sh
PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3) python3)
BIN := .venv/bin

# Without Python's caches each worker of each stage would compile all the tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup same-python demo test check unit newest-packages unit-newest spark long beside integration clients \
  kubernetes fuzz bench release lock clean

setup: .venv/.installed .cache/.jars

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "weir needs Python 3.11 or newer and '$(PYTHON)' is not: install it, or name it: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "'$(PYTHON)' makes no virtual environments: install its venv (Debian: apt-get install python3-venv), or name" \
	    "another: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

# A .venv that is there stays of the Python that it was made with.
same-python: | $(BIN)/python
	@[ "$(origin PYTHON)" = file ] || [ "$$($(PYTHON) --version)" = "$$($(BIN)/python --version)" ] || \
	  { echo ".venv is of $$($(BIN)/python --version) and '$(PYTHON)' is another: run make clean first" >&2; exit 1; }

# Hashes for every package; the project itself is built by the setuptools of the lock, so nothing else is fetched for it.
# Python compiles what is imported, where pip would compile all; and PySpark's archives are not compressed once more.
PIP_INSTALL = DIST_EXTRA_CONFIG=$(CURDIR)/lab/wheel.cfg $(BIN)/python -m pip install --quiet --no-compile \
  --disable-pip-version-check

.venv/.installed: requirements-dev.lock pyproject.toml | same-python
	@echo "Installing the packages of requirements-dev.lock (PySpark alone is 300 MB: minutes the first time)"
	$(PIP_INSTALL) --require-hashes -r requirements-dev.lock
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# Also starts one broker of each version and stops it, so that set-up fails where the lab would.
.cache/.jars: $(wildcard lab/jars-*.sha256) lab/jars.py lab/modes.py lab/prepare.py | .venv/.installed
	$(BIN)/python -m weir.lab.prepare
	@touch $@

demo: setup
	$(BIN)/weir demo

# Tests on brokers mostly wait for bytes that come at a rate, so what only computes runs beside them; and pip needs one
# core, so the packages of the other Python come meanwhile.
test:
	$(MAKE) --no-print-directory --jobs=2 setup newest-packages
	$(MAKE) --no-print-directory unit
	$(MAKE) --no-print-directory unit-newest
	$(MAKE) --no-print-directory --jobs=2 integration beside

check: .venv/.installed
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

OWN := not spark and not slow and not clients and not kubernetes
UNIT := not integration and not long and $(OWN)

unit: .venv/.installed
	$(BIN)/pytest -n 2 --dist loadfile -m "$(UNIT)"

# Again on the newest other Python of this machine: what depends on its version, in 70 s on two cores. A socket that only
# the garbage collector closes is `make unit`'s to judge: found late, it fails whichever test runs then.
unit-newest: .venv/.installed
	$(BIN)/python -m weir.lab.newest_python -n 2 --dist loadfile -m "newest or ($(UNIT))" \
	  -W ignore::pytest.PytestUnraisableExceptionWarning \
	  $(NEWEST_TESTS)

newest-packages: | $(BIN)/python
	$(BIN)/python lab/newest_python.py --packages

NEWEST_TESTS = tests/access tests/cli tests/control tests/proxy/tls tests/proxy/checkup tests/proxy/test_*.py

# All of them on the Spark of the lock, and a part, marked `oldest_spark`, on the oldest that is supported: so few that a
# second Spark beside the first would cost more than it does.
spark: .venv/.installed .cache/spark-3.5/.installed
	$(BIN)/pytest -n 2 --dist loadfile -m "spark and not slow" $(SPARK_TESTS)
	PYTHONPATH=$(CURDIR)/.cache/spark-3.5 $(BIN)/pytest -m "oldest_spark and spark" tests/pipeline

SPARK_TESTS = tests/pipeline $(shell grep -rl 'mark\.spark\b' tests --include='test_*.py')

# A folder that stands before .venv's packages, so that these tests differ in nothing but Spark.
.cache/spark-3.5/.installed: requirements-spark-3.5.lock | .venv/.installed
	rm -rf $(@D)
	$(PIP_INSTALL) --require-hashes --no-deps --no-build-isolation --target $(@D) -r requirements-spark-3.5.lock
	@touch $@

long: .venv/.installed
	$(BIN)/pytest -n 2 --dist loadfile -m "computes and $(OWN)"

# At the lowest priority, so that brokers lose no time. Linux weighs sessions against each other (autogroup), so it is a
# session of its own. Its output is shown when it has ended.
beside: .venv/.installed
	@mkdir -p .cache; trap 'kill $$!' INT TERM; \
	setsid sh -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 19 $(MAKE) check spark long' >.cache/beside 2>&1 & \
	wait $$!; status=$$?; cat .cache/beside; exit $$status

INTEGRATION := (integration or long) and not computes and $(OWN)
OF_BROKERS := -o cache_dir=.cache/pytest-integration -m "$(INTEGRATION)"

# What fails there is run once more by itself: these tests time what brokers do, and several of them share two cores.
integration: setup
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder $(OF_BROKERS) || \
	  $(BIN)/pytest --last-failed --last-failed-no-failures none $(OF_BROKERS)

clients: setup
	$(BIN)/pytest -n 3 --dist load -m clients tests/clients

# The programs are built anew when go.mod names other versions. `server` is etcd's. Without Go the tests are skipped.
kubernetes: .venv/.installed $(if $(shell command -v go),.cache/kubernetes/.built)
	$(BIN)/pytest -m kubernetes tests/kubernetes

KUBERNETES_VERSION = $(shell sed -n 's|^.*k8s.io/kubernetes \(v[0-9.]*\).*|\1|p' tests/kubernetes/go.mod)

.cache/kubernetes/.built: tests/kubernetes/go.mod tests/kubernetes/go.sum
	@echo "Building Kubernetes' API server, its controllers, etcd, kubectl and Helm: ten minutes on two cores the first time"
	@mkdir -p $(@D)
	cd tests/kubernetes && CGO_ENABLED=0 nice -n 19 go build -trimpath -o $(CURDIR)/$(@D)/ \
	  -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES_VERSION)" tool
	@touch $@

# A minute of it is part of `integration`.
fuzz: .venv/.installed
	FUZZ_SECONDS=$(or $(SECONDS),600) FUZZ_SEED=$(or $(SEED),1) $(BIN)/pytest -s --show-capture=no \
	  tests/faults/test_fuzzed_frames.py

# Every bench/<name>.py that can be run by itself, then the tests that take minutes (5: there is none). All are run, and
# the status tells at the end whether one of them missed what it must hold.
BENCHES = $(shell grep -l "__main__" bench/*.py)

bench: setup
	@missed=0; for bench in $(BENCHES:%.py=%); do \
	  echo "$$bench"; $(BIN)/python -m $$(echo $$bench | tr / .) || missed=1; \
	done; \
	$(BIN)/pytest -m slow || [ $$? -eq 5 ] || missed=1; \
	exit $$missed

release: .venv/.installed
	$(BIN)/python -m weir.lab.release

lock: .venv/.installed
	@$(BIN)/python -m piptools --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet pip-tools
	$(PIP_COMPILE) --extra uvloop --output-file requirements.lock pyproject.toml
	$(PIP_COMPILE) --all-extras --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml
	$(PIP_COMPILE) --all-build-deps --only-build-deps --constraint requirements-dev.lock \
	  --output-file requirements-build.lock pyproject.toml
	echo "pyspark<4" | $(PIP_COMPILE) --output-file requirements-spark-3.5.lock -

PIP_COMPILE := $(BIN)/python -m piptools compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-header \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

clean:
	rm -rf .venv .venv-newest .cache build dist *.egg-info
