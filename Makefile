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
demo: all
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
.PHONY: all deps demo test sanitize bench fuzz format check
