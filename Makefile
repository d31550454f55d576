# make run    compile the tiny PPO example, run it on four CPU workers, verify its trace
# make test   the test suite; `make test-all` includes the slow tests
# Both create .venv and install what they need once; PYTHON=python3.12 chooses another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
BUILD := build

export OMP_NUM_THREADS ?= 1

STUDIES := weak_scaling strong_scaling case_study ablations convergence stability

.PHONY: run test test-all study hardware learning lint fmt clean

run: $(STAMP)
	@mkdir -p $(BUILD)
	$(BIN)/rpegc examples/ppo_tiny.rpeg -O2 -o $(BUILD)/plan.exe.json --summary
	$(BIN)/rpeg-rt $(BUILD)/plan.exe.json --data examples --trace $(BUILD)/run.trace.jsonl
	$(BIN)/rpeg-rt verify $(BUILD)/run.trace.jsonl $(BUILD)/plan.exe.json

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow"

test-all: $(STAMP)
	$(BIN)/python -m pytest

# The predictions and searches of benchmarks/README.md, with its tables (takes long).
study: $(STAMP)
	set -e; for name in $(STUDIES); do $(BIN)/python -m benchmarks.$$name; done
	$(BIN)/python -m benchmarks.summary

# The shipped hardware files, from the published tables of calib/data; and how far predictions are off the others.
SWEEPS := calib/data/gemm_bf16.csv calib/data/nccl_intranode.csv
hardware: $(STAMP)
	$(BIN)/rpeg-calib fit $(SWEEPS) calib/data/vtrain_train_single_a100.csv --where system=a100_sxm \
	  --where layers=12,24 --onto a100-80 -o calib/hardware/a100-80.json
	set -e; for name in h100 h200 b200; do \
	  $(BIN)/rpeg-calib fit $(SWEEPS) --where system=$${name}_sxm --onto $$name -o calib/hardware/$$name.json; done
	$(BIN)/rpeg-calib fit calib/data/gemm_bf16.csv calib/data/nccl_gh200_slingshot_2node.csv \
	  calib/data/p2p_gh200_mpich.csv --where system=h100_sxm --where "config=tuned aws-ofi-nccl" \
	  --keep memory_bandwidth --onto gh200 -o calib/hardware/gh200.json
	$(BIN)/python -m benchmarks.published

# The learning studies behind the curves in the repository (several seeds; takes hours).
learning: $(STAMP)
	$(BIN)/python benchmarks/learning/example.py
	$(BIN)/python -m benchmarks.learning.study

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m ir_schema.jsonschema

clean:
	rm -rf $(BUILD)

# The stamp is newer than pyproject.toml as long as what that file asks for is installed.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "rpeg needs Python 3.11 or newer; choose one with PYTHON=python3.x" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[runtime,test,lint,plots]'
	touch $@
