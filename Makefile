# The names people type; Meson does the work. BUILD is the build folder.
BUILD ?= build
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=

all: $(BUILD)/build.ninja
	ninja -C $(BUILD)
$(BUILD)/build.ninja:
	tools/deps.sh
	meson setup $(BUILD)
deps:
	tools/deps.sh
demo: $(BUILD)/build.ninja # the program alone: half of the work of `all`
	ninja -C $(BUILD) deepserve
	tools/demo.sh $(BUILD)
test: all
	tests/run.py --build $(BUILD)
sanitize:
	tools/sanitize.sh
bench: all
	meson test -C $(BUILD) --benchmark --verbose --num-processes 1
fuzz:
	tools/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)
format:
	git ls-files '*.c' '*.h' | xargs clang-format -i
check:
	tools/check.py
# On a machine with a GPU: every op against ref, then each at production shapes. Elsewhere it skips, saying so.
gpu-test: all
	tools/gpu-test.sh $(BUILD)
install: all
	meson install -C $(BUILD) --no-rebuild
# Clients that come, go and misbehave at random, for an hour.
CHAOS_SECONDS ?= 3600
chaos: all
	CHAOS_SECONDS=$(CHAOS_SECONDS) DEEPSERVE=$(abspath $(BUILD))/deepserve python3 -m pytest -q -s tests/e2e/test_server_chaos.py
wheel: all
	tools/wheel.py $(BUILD)
# Devices that fail in every way, until ten million blocks were fetched and looked at; 2,000 random schemas against another validator, and every
# token against the masks.
nightly: all
	$(BUILD)/tests/unit/kvstore/test_kvstore_faults 10000000
	SCHEMAS=2000 DEEPSERVE=$(abspath $(BUILD))/deepserve python3 -m pytest -q -s tests/e2e/test_schemas_random.py
	$(BUILD)/tests/unit/kvstore/test_kvstore_rados 10000000
deb: all
	tools/deb.sh $(BUILD)
# The recipe next to its peers (tests/requirements.txt): the same results, and how fast.
recipe-peer: all .venv/bin/python
	.venv/bin/python -m pytest -q tests/e2e -k peer
	.venv/bin/python bench/tokenizer_peer.py --build $(BUILD)
	.venv/bin/python bench/request_peer.py --build $(BUILD)
.venv/bin/python:
	python3 -m venv --system-site-packages .venv
	.venv/bin/pip install -q -r tests/requirements.txt
.PHONY: nightly all deps demo test sanitize bench fuzz format check install gpu-test chaos deb wheel recipe-peer
