# `make demo` and `make test` do all of their own set-up.
SHELL := bash
PYTHON ?= python3
BIN := .venv/bin
# What pip holds to: the torch and the Flower that are to be installed. CONSTRAINTS= for none.
CONSTRAINTS ?= constraints.txt

# $(call install,ENVIRONMENT,WHAT,CONSTRAINTS,STAMP): of pip's words those that show that it goes on.
define install
@echo "installing $(2) into $(1), which takes a minute or two"
@set -o pipefail; $(1)/bin/python -m pip install --disable-pip-version-check $(if $(3),-c $(3)) -e '$(2)' \
	| grep --line-buffered -oE '^(Collecting [^ ]+|Installing collected packages|Successfully installed)'
@touch $(1)/$(4)
endef

comma := ,

# A checkout has a dozen processes of pytest, and each would compile the tests again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo check checked test types cases test-processors test-lowest test-slow test-cluster test-peers docs gpu-check gpu-accept gpu-wheels compare clean

demo: .venv/installed
	$(BIN)/fedbench attack

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory --jobs 2 types cases

# Lint, types, and the tests that a change most often breaks: in a minute and a half.
CHECKED := $(patsubst %,tests/test_%.py,house docs options golden payload scenario frozen mistakes ensemble)

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory --jobs 2 types checked

checked: .venv/installed-dev
	$(BIN)/pytest -q $(CHECKED)

# mypy uses one core, so the tests run beside it.
types: .venv/installed-dev
	$(BIN)/mypy

cases: .venv/installed-dev
	$(BIN)/pytest -q -n 2

# The tests that compare two ways of computing, again as two other processors compute: one of 2008, with torch's kernels
# for any processor and oneDNN and MKL without AVX, and one with AVX2. They sum in other orders, so a test that holds by
# the luck of one order fails here first.
COMPARISONS := $(patsubst %,tests/test_%.py,backdoors choice conformance coordinate_rules dense_attacks distance_rules \
	eden fedmrn fedpm fedsparse fedsparsify filter_rules golden gpu_acceptance hierarchical mask_rules mechanisms models \
	opacus padded payload qsgd recorded rotation searches secure_sums speed streamed_combinations training)
COMPARISONS += tests/test_run.py::test_another_executor_draws_the_same_and_agrees_to_rounding \
	tests/test_run.py::test_a_record_alone_is_enough_to_play_it_again_apart_from_times \
	tests/test_probes.py::test_the_simulated_update_of_the_truth_is_the_update \
	tests/test_probes.py::test_an_ear_at_the_server_changes_nothing_and_hears_what_was_sent
# Tests of these files that see whether plug-ins work together, and compare nothing.
NO_COMPARISONS := test_every_attack_keeps_its_promises_everywhere or test_whatever_is_accepted_has_a_finite_aggregate \
	or test_a_combination_exists_exactly_if_both_rules_accept_what_the_protocol_sends

COMPARE = $(BIN)/pytest -q -n 2 $(COMPARISONS) -k 'not ($(NO_COMPARISONS))'

test-processors: .venv/installed-dev
	@echo "comparisons as on a processor of 2008"
	@ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE $(COMPARE)
	@if grep -qs avx2 /proc/cpuinfo; then echo "as on one with AVX2" && \
		ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(COMPARE); \
	else echo "this processor has no AVX2: its kernels were not tested"; fi

# The tests that meet our dependencies, with the lowest versions that pyproject.toml admits. The text of a JSON schema is
# pydantic's own, so the one of the newest is compared only there.
LOWEST := $(patsubst %,tests/test_%.py,payload symbol_attacks levels datasets opacus scenario results cli cli_results \
	display figures leaderboard sweep)
NEWEST_ONLY := tests/test_leaderboard.py::test_the_schemas_in_the_repository_are_current

test-lowest: .venv-lowest/installed
	.venv-lowest/bin/pytest -q -n 2 $(LOWEST) --deselect $(NEWEST_ONLY)

# Files of many slow tests that share nothing, which both workers take; of another file one worker takes all.
SPREAD := $(patsubst %,tests/test_%.py,conformance searches auto deployment run streamed_combinations)
# Of the others those that take longest come first, so that both workers end at about the same time.
LONG := $(patsubst %,tests/test_%.py,isolation sweep learning speed backdoors site leaderboard_played own_examples \
	safesparse second_device deepsight streamed)
OTHERS = $(filter-out $(SPREAD) $(LONG),$(shell grep -lE 'mark\.(slow|edges)' tests/test_*.py))

test-slow: .venv/installed-dev
	$(BIN)/pytest -q -m slow -n 2 --dist worksteal $(SPREAD)
	$(BIN)/pytest -q -m slow -n 2 --dist loadfile --no-loadscope-reorder $(LONG) $(OTHERS)

test-cluster: .venv/installed-dev
	$(BIN)/pytest -q -m cluster $(shell grep -l 'mark\.cluster' tests/test_*.py)

# The documentation site, in site/: strictly, so a page outside of the navigation or a link to nowhere fails.
docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --config-file docs/site/mkdocs.yml

# The tests that need packages of other projects, in an environment of their own. byzpy asks for an older torch than ours,
# so it comes without what it depends on; its rules need nothing else.
test-peers: .venv-peers/installed
	.venv-peers/bin/pytest -q -m peers -n 2 --dist loadfile $(shell grep -l 'mark\.peers' tests/test_*.py)

# How fast this is beside another commit: make compare BASE=main~5
compare: .venv/installed
	$(BIN)/python benchmarks/commits.py $(or $(BASE),HEAD~1)

# Whether a GPU computes what the CPU does, and an acceptance run of ten minutes. Where there is no network,
# `make gpu-wheels` has put what the machine's own Python lacks into .wheels; elsewhere CONSTRAINTS= lets pip take a
# torch for CUDA.
ifneq ($(wildcard .wheels),)
GPU_READY := .site/installed
GPU_RUN := PYTHONPATH=.:attacks:defenses:.site $(PYTHON)
else
GPU_READY := .venv/installed-dev
GPU_RUN := $(BIN)/python
endif
# Options, for instance GPU_ARGS='--device cpu'.
GPU_ARGS ?=

gpu-check: $(GPU_READY)
	$(GPU_RUN) benchmarks/speed/gpu_check.py $(GPU_ARGS)

gpu-accept: $(GPU_READY)
	$(GPU_RUN) benchmarks/speed/gpu_accept.py $(GPU_ARGS)

# Packages that the other machine lacks, in the versions of .venv here; its Python GPU_PYTHON must have the rest
# (docs/performance.md, "Without a network"). The wheel of fedbench is for its entry points; the code that runs is the
# checkout's.
GPU_PYTHON ?= 3.12
GPU_LACKS ?= pydantic pydantic-core annotated-types typing-inspection tomli-w constriction opacus mlxtend
PLATFORMS := $(patsubst %,--platform manylinux%_x86_64,_2_28 _2_27 _2_17 2014 1)

gpu-wheels: .venv/installed-dev
	rm -rf .wheels
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
		--python-version $(GPU_PYTHON) $(PLATFORMS) -c <($(BIN)/pip list --format=freeze) -d .wheels $(GPU_LACKS)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w .wheels .
	ls -l .wheels

.site/installed: $(wildcard .wheels/*.whl)
	rm -rf .site
	$(PYTHON) -m pip install --quiet --no-index --no-deps --no-compile --target .site .wheels/*.whl
	@touch .site/installed

.venv/bin/python:
	@$(PYTHON) -c "import sys; sys.version_info >= (3, 11) or sys.exit('fedbench needs Python >= 3.11, got ' + sys.version.split()[0] + '; run make PYTHON=python3.11')"
	@echo "making the virtual environment .venv"
	@$(PYTHON) -m venv .venv

# Entry points are read from installed metadata, so a change of pyproject.toml installs again.
.venv/installed: .venv/bin/python pyproject.toml $(CONSTRAINTS)
	$(call install,.venv,.,$(CONSTRAINTS),installed)

.venv/installed-dev: .venv/installed
	$(call install,.venv,.[dev],$(CONSTRAINTS),installed-dev)

.venv-lowest/installed: pyproject.toml tests/lowest.txt
	@echo "making the virtual environment .venv-lowest"
	@$(PYTHON) -m venv .venv-lowest
	$(call install,.venv-lowest,.[dev],tests/lowest.txt,installed)

# Without fedbench and torch: the reference is made from the text of the sources.
.venv-docs/installed: docs/site/requirements.txt
	@echo "making the virtual environment .venv-docs"
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/site/requirements.txt
	@touch $@

.venv-peers/installed: pyproject.toml $(CONSTRAINTS)
	@echo "making the virtual environment .venv-peers"
	@$(PYTHON) -m venv .venv-peers
	$(call install,.venv-peers,.[dev$(comma)flower$(comma)byzfl$(comma)track$(comma)hf$(comma)frames],$(CONSTRAINTS),base)
	@.venv-peers/bin/python -m pip install --disable-pip-version-check --quiet --no-deps byzpy==0.1.4
	@.venv-peers/bin/python -m pip install --disable-pip-version-check --quiet "optuna>=4"  # examples/tune.py
	@touch .venv-peers/installed

clean:
	rm -rf .venv .venv-lowest .venv-peers .venv-docs .wheels .site results site
