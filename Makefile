SHELL := /bin/bash
RUN := scripts/with_env
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test benchmarks figures gpu lint docs wheel clean

help:  ## show these targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## install what is missing (virtual environment, libraries, ROS 2 workspace); instant when nothing changed
	@scripts/setup.sh

demo: setup  ## a simulated Go2 finds the silver bottle; DEMO="--seed 3 --mode sd" passes options on
	@$(RUN) python -m vlm_nav_evaluation demo $(DEMO)

# Two processes: torch has one thread in each, and the two cores that the suite is made for are used. A file's tests stay together.
test: setup  ## run all tests in WORKERS processes (2); TESTS="tests/speculation -k tree" picks some, in one
	@scripts/setup.sh browser
	@$(RUN) python -m pytest $(if $(TESTS),$(TESTS),-n $(WORKERS) --dist loadfile)

benchmarks: setup  ## every table and plot of docs/benchmarks.md (hours); BENCH="--quick" for a look at all of them
	@$(RUN) python -m benchmarks $(BENCH)

figures: setup  ## figures of README and pages, saved; goes on where it was stopped; BENCH="--quick" for a look in minutes
	@$(RUN) python -m benchmarks --figures $(or $(BENCH),--save --journal out/figures)

gpu: setup  ## all that a GPU has to show, 12 minutes, into out/gpu; GPU="--device cpu --quick" tries the program without one
	@$(RUN) python -m benchmarks.gpu $(GPU)

lint: setup  ## ruff, codespell, mypy --strict, and whether saved results say what they are of
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) codespell
	@$(RUN) mypy
	@$(RUN) python scripts/check_results.py

docs: setup  ## these pages as a site in out/site; a broken link fails it
	@NO_MKDOCS_2_WARNING=1 $(RUN) python -m mkdocs build --strict --quiet

wheel: setup  ## one wheel of all Python packages in dist/
	@rm -rf build dist
	@$(RUN) python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@rm -rf build

clean:  ## remove everything that setup, demo and tests made
	@scripts/setup.sh clean
	rm -rf .venv ros_ws/build ros_ws/install ros_ws/log out build dist *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
