# Each target uses the active Python where it has all that the target needs, and makes .venv otherwise.

PYTHON ?= python3
SUITE ?= chapter square
ARGS ?=
CSV ?= bench/results

# The versions that are installed into .venv: with a GPU torch and the Triton it ships with; without one
# the small CPU build where pip is offered it, and the same Triton, to interpret and to compile.
TORCH_GPU = torch==2.11.0
TORCH_CPU = torch==2.13.0+cpu
TRITON = triton==3.6.0

# as many processes as cores; one where there is a GPU to share (tests/conftest.py)
PARALLEL = -n auto

NEEDS_bench = torch triton numpy pandas tabulate rich setuptools ninja
NEEDS_doctor = torch triton numpy
NEEDS_plots = $(NEEDS_bench) matplotlib
NEEDS_test = $(NEEDS_bench) pytest xdist hypothesis
NEEDS_lint = torch triton numpy pandas rich ruff mypy

export COMMIT ?= $(shell git describe --always --dirty 2>/dev/null)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

bench: ## the table of all variants (no GPU: the cross-check); SUITE="chapter square", or all; ARGS=
	$(call with,bench) -m bench --suite $(SUITE) $(ARGS)

results: ## measures SUITE (as for bench) into bench/results/<gpu> (or CSV=), then makes the tables from bench/results
	$(call with,bench) -m bench --suite $(SUITE) --csv $(CSV) && "$$py" -m bench.table

precision: ## measures the errors of each precision on many kinds of data into bench/results/<gpu> (or CSV=), then tables
	$(call with,bench) -m bench.precision --csv $(CSV) $(ARGS) && "$$py" -m bench.table

examples: ## measures the programs of docs/examples.md into bench/results/<gpu> (or CSV=), then tables; needs timm, transformers
	$(call with,bench) -m examples.orthogonalise --csv $(CSV) && "$$py" -m examples.transformer --csv $(CSV) \
	&& "$$py" -m bench.table

calls: ## what a call costs the host, its gradients, their memory: into bench/results/<gpu> (or CSV=), then tables
	$(call with,bench) -m bench.calls --csv $(CSV) && "$$py" -m bench.table

choices: ## is what the plan chooses the faster one? into bench/results/<gpu> (or CSV=), then tables
	$(call with,bench) -m bench.choices --csv $(CSV) && "$$py" -m bench.table

plots: ## draws docs/plots from bench/results (or CSV=); needs no GPU
	$(call with,plots) -m bench.plots --results $(CSV) $(ARGS)

report: ## one page of all tables and pictures, build/report.html, from bench/results (or CSV=); needs no GPU
	$(call with,plots) -m bench.report --results $(CSV) $(ARGS)

doctor: ## what this machine is, what computes a product on it, whether that is right and how fast; ARGS=--quick
	$(call with,doctor) -m triton_sgemm $(ARGS)

compare: ## each raw CUDA rung beside its Triton twin
	$(call with,bench) -m bench.compare $(ARGS)

compile: ## registers, shared memory and spills of every variant for every architecture (needs no GPU)
	$(call with,bench) -m bench.compiled $(ARGS)

explain: ## why a variant is as fast as it is: predicted, compiled, measured (needs no GPU); VARIANT= GPU=
	$(call with,bench) -m bench.explain $(if $(VARIANT),--variants $(VARIANT:%='%')) $(if $(GPU),--gpu $(GPU)) $(ARGS)

profile: ## what the GPU counts while variants run (ncu), into bench/results/<gpu>/profile.csv (or CSV=), then tables; VARIANT= SIZE=
	$(call with,bench) -m bench.profile --csv $(CSV) $(if $(VARIANT),--variants $(VARIANT:%='%')) $(if $(SIZE),--size $(SIZE)) $(ARGS) \
	&& "$$py" -m bench.table

table: ## the tables of README and docs, from bench/results
	$(call with,bench) -m bench.table

test: ## the tests; without a GPU those that need one are skipped
	$(call with,test) -m pytest $(PARALLEL) $(ARGS)

test-gpu: ## the tests that need a GPU; a skip for want of one fails
	$(call with,test) -m pytest -m gpu --require-gpu $(ARGS)

test-newest: ## the tests that run or compile Triton code, with the newest Triton
	@$(call find,test) && "$$py" -m pip install --quiet --upgrade --no-deps --target .newest triton \
	&& PYTHONPATH=.newest "$$py" -m pytest tests/test_product.py tests/test_rules.py tests/test_variants.py \
		--arch 90 $(PARALLEL) $(ARGS)

lint: ## ruff and mypy; changes nothing
	@$(call find,lint) && "$$py" -m ruff format --check . && "$$py" -m ruff check . && "$$py" -m mypy

fmt: ## formats the code
	@$(call find,lint) && "$$py" -m ruff check --fix . && "$$py" -m ruff format .

clean: ## removes what make made here
	rm -rf .venv .newest build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help bench results precision examples calls choices plots report doctor compare compile explain profile table
.PHONY: test test-gpu test-newest lint fmt clean

# sets the shell's $$py to a Python that has all of NEEDS_<target>
missing = $$("$(1)" -c 'import importlib.util as u, sys; print(*(m for m in sys.argv[1:] if not u.find_spec(m)))' $(2) 2>/dev/null || echo python)
define find
lacks="$(call missing,$(PYTHON),$(NEEDS_$(1)))"; py="$(PYTHON)"; \
if [ -n "$$lacks" ]; then \
	case " $$lacks " in *" torch "*|*" python "*) ;; *) echo "$(PYTHON) has torch but not: $$lacks; using .venv instead" >&2 ;; esac; \
	$(MAKE) --no-print-directory .venv/installed >&2 && py=.venv/bin/python; \
fi
endef
with = @$(call find,$(1)) && "$$py"

# torch first: what needs it would otherwise bring another build
.venv/installed: pyproject.toml Makefile
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --upgrade pip
	if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then \
		.venv/bin/python -m pip install --quiet $(TORCH_GPU); \
	else \
		.venv/bin/python -m pip install --quiet $(TORCH_CPU) 2>/dev/null || .venv/bin/python -m pip install --quiet $(TORCH_GPU); \
	fi
	.venv/bin/python -m pip install --quiet $(TRITON) --editable '.[dev]'
	touch $@
