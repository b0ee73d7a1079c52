# The names people type; Meson does the work.
BUILD ?= build

all: $(BUILD)/build.ninja
	ninja -C $(BUILD)
$(BUILD)/build.ninja:
	meson setup $(BUILD)
deps:
	tools/deps.sh
test: all
	tests/run.py --build $(BUILD)
.PHONY: all deps test
