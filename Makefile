PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

.PHONY: setup demo test test-slow lint wheel docs bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml paper/pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e ./paper
	touch $(STAMP)

demo: setup
	$(PY) -m dgnet_paper demo --out out

lint: setup
	$(PY) -m ruff check src paper tests examples benchmarks
	$(PY) -m mypy

# two processes side by side, one thread each; the second one's report comes at the end
SECOND := paper/tests tests/report tests/export tests/cli tests/benchmarks tests/attacks tests/studio

test: lint
	@mkdir -p out; export OMP_NUM_THREADS=1; \
	$(PY) -m pytest $(SECOND) > out/tests.log 2>&1 & second=$$!; \
	trap "kill $$second 2>/dev/null" INT TERM; \
	$(PY) -m pytest tests $(addprefix --ignore=,$(SECOND)); first=$$?; \
	wait $$second; code=$$?; cat out/tests.log; exit $$((first + code))

test-slow: setup  # what `make test` leaves out for its time
	OMP_NUM_THREADS=1 $(PY) -m pytest -m slow

wheel: setup  # the packages as others get them: built, installed into an empty environment, used once
	rm -rf out/wheel
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir out/wheel . ./paper
	test $$(stat -c %s out/wheel/dgnet-*.whl) -lt 6000000
	$(PYTHON) -m venv out/wheel/venv
	out/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt out/wheel/dgnet-*.whl
	cd out/wheel && venv/bin/dgnet --version && venv/bin/python -m dgnet new plate && venv/bin/dgnet check plate
	out/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt out/wheel/dgnet_paper-*.whl
	cd out/wheel && venv/bin/dgnet-paper pretrained
	rm -rf out/wheel

docs: setup  # the pages in out/docs/index.html, every link checked
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(PY) -m mkdocs build --quiet

bench: setup
	$(PY) -m benchmarks solver --json out/bench/solver.json
	$(PY) -m benchmarks rollout --json out/bench/rollout.json

clean:
	rm -rf out .pytest_cache .mypy_cache .ruff_cache
