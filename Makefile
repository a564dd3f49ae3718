# The verbs of PGXS and a few more. What a verb needs it finds or prepares itself. Those of PGXS take the server of
# PG_CONFIG, else the system's, or stop; tests, demo and benchmarks fall back to an embedded one.

PYTHON ?= python3
DEV = $(PYTHON) dev/setup.py --

all: build

help:          ## this list; PG_CONFIG=… chooses the server, PG=14 … PG=18 its version (default 15)
	@sed -n 's/^\([a-z-]*:\).*## /\1\t/p' Makefile | expand -t 16

build:         ## compile in release mode (what `make` alone does)
	@$(PYTHON) dev/build.py --system --build-only

install:       ## compile, and install into the server of PG_CONFIG, else of the system
	@$(PYTHON) dev/build.py --system

package:       ## compile, and leave the files to install in target/package/pgN
	@$(PYTHON) dev/build.py --system --build-only

# for the tests: into the embedded server where the system has none to use
installed:
	@$(PYTHON) dev/build.py

installcheck:  ## regression tests and isolation specs on the running server of PGHOST, PGPORT
	@$(PYTHON) dev/regress.py --running

test:          ## everything: format, lint, standing checks, units, regress, isolation, clusters
	@$(PYTHON) dev/test.py

check-format:  ## rustfmt
	@$(DEV) cargo fmt --all --check

check-lint:    ## clippy, warnings are errors
	@$(DEV) sh -c 'cargo clippy --workspace --all-targets --no-default-features --features pg$$PG -- -D warnings'

check:         ## standing checks of the source and the install script
	@$(PYTHON) dev/check.py

units:         ## unit and property tests of the rules
	@$(DEV) cargo test --package outbox-rules

regress:       ## regression tests on a throw-away cluster; TESTS='append claim' for some
	@$(PYTHON) dev/regress.py --only regress $(TESTS)

isolation:     ## isolation specs on a throw-away cluster; TESTS='…' for some
	@$(PYTHON) dev/regress.py --only isolation $(TESTS)

cluster: installed ## tests with throw-away clusters of their own; TESTS='-k restart' for some
	@$(DEV) $(PYTHON) -m pytest tests/cluster $(TESTS)

clients: installed ## the contract's cases through the drivers of ten languages; ARGS="--drivers 'psycopg 3'" for some
	@$(DEV) $(PYTHON) clients/contract/run.py --no-install $(if $(ARGS),$(ARGS),--write)

demo:          ## see it work
	@$(DEV) $(PYTHON) demo/run.py

demo-stop:     ## stop and delete the cluster that the demo left running
	@$(PYTHON) demo/run.py --end

torture: installed ## the demo's load killed ten times, and ten minutes of transactions that stay open; PART=crash, PART=open ARGS='--seed 7' for one
	@$(if $(filter open,$(PART)),:,$(PYTHON) demo/run.py --crash 10)
	@$(if $(filter crash,$(PART)),:,$(DEV) $(PYTHON) -m pytest tests/cluster/test_torture.py -q -s -p no:cacheprovider --seconds 600 $(ARGS))

bench:         ## outbox beside its peers, the short form; ARGS='append --systems outbox,plain' for some
	@$(DEV) $(PYTHON) benches/run.py $(ARGS)

bench-full:    ## everything, about two hours, or what is still missing of it; then benches/report is this; ARGS='append keys' for parts
	@$(DEV) $(PYTHON) benches/run.py --full $(ARGS)

compare:       ## this checkout / BEFORE=<checkout or git revision>, in one run, about five minutes; ARGS=--long for more rounds
	@$(DEV) $(PYTHON) benches/compare.py $(BEFORE) $(ARGS)

clean:         ## remove what was compiled
	rm -rf target/package
	cargo clean --quiet --package outbox

distclean:     ## remove what was compiled and what was set up for it
	rm -rf "$$($(PYTHON) dev/setup.py --area)" target

.PHONY: all help build install package installed installcheck test check-format check-lint check units regress \
        isolation cluster clients demo demo-stop torture bench bench-full compare \
        clean distclean
