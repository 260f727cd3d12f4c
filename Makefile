# m3: one program (build/m3) and its tests. `make help` lists the targets.
BUILD ?= build
CC    := mpicc
SAN   ?=
CUDA  ?= $(if $(NVCC),1,0)
ARCH  ?= sm_90a
CUDA_HOME ?= /usr/local/cuda
NVCC  := $(firstword $(wildcard $(shell command -v nvcc 2>/dev/null) $(CUDA_HOME)/bin/nvcc))
CPU   ?= native
V     ?=
Q     := $(if $(V),,@)

pkg = $(shell pkg-config $(1) $(2) 2>/dev/null || echo $(3))
LIBS := hdf5-openmpi yaml-0.1 jansson libpcre2-8
# maybe-uninitialized: gcc does not see that TRY() returns before a value that a failed call left unset is used
CFLAGS  := -std=c11 -D_GNU_SOURCE -O3 -g -march=$(CPU) -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=fast \
           -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-maybe-uninitialized \
           -Isrc -Ikernels -Iio $(call pkg,--cflags,$(LIBS)) $(call pkg,--cflags,openblas) $(PFX_CFLAGS)
LDLIBS  := $(PFX_LDFLAGS) $(call pkg,--libs,$(LIBS)) $(call pkg,--libs,openblas,-lopenblas) -lpthread -lm
ifdef SAN
CFLAGS := $(filter-out -O3,$(CFLAGS)) -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
endif

SRC  := $(filter-out src/main.c,$(wildcard src/*.c)) $(wildcard kernels/*.c io/*.c)
OBJ  := $(SRC:%.c=$(BUILD)/%.c.o)
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/*.c))

ifeq ($(CUDA),1)
CU   := $(wildcard kernels/*.cu)
OBJ  += $(CU:%.cu=$(BUILD)/%.cu.o)
NVFLAGS := -std=c++17 -O3 -g -lineinfo -gencode=arch=compute_$(ARCH:sm_%=%),code=$(ARCH) -Isrc -Ikernels \
           -Xcompiler -Wall,-Wextra,-Werror,-Wno-unused-parameter
LDLIBS += -L$(CUDA_HOME)/lib64 -lcudart -lcublas -lstdc++
CFLAGS += -I$(CUDA_HOME)/include -DHAVE_CUDA_BUILD=1
endif

.DEFAULT_GOAL := all
all: $(BUILD)/m3
tests: $(TESTS)

$(BUILD)/m3: $(BUILD)/src/main.c.o $(BUILD)/libm3.a
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/libm3.a: $(OBJ)
	@rm -f $@ && ar rcs $@ $^
$(BUILD)/tests/%: $(BUILD)/tests/%.c.o $(BUILD)/libm3.a
	$(Q)$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS) -lcmocka
$(BUILD)/%.c.o: %.c
	@mkdir -p $(@D)
	@echo "cc    $<"
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "nvcc  $<"
	$(Q)$(NVCC) $(NVFLAGS) -MMD -MP -c -o $@ $<

# ---- for people ----
help:
	@echo "make          build/m3 (with CUDA where nvcc is found, CUDA=0 without; V=1 shows the commands)"
	@echo "make demo     set up, build, train a tiny model on GSM8K, show the curve"
	@echo "make check    set up, build, run the tests          T=name: only those"
	@echo "make check-gpu  everything on a GPU: ops, golden cases, training, sanitizers, times   T='ops golden': only those"
	@echo "make tests    build the test programs"
	@echo "make bench    this machine's numbers"
	@echo "make soak     the long tests"
	@echo "make setup    install what is missing (Debian, Ubuntu)"
	@echo "make clean    remove build/"
setup:
	@jobs/setup.sh
check: setup
	@$(MAKE) --no-print-directory -j2 all tests
	@BUILD=$(BUILD) tests/run.sh $(T)
check-gpu:
	@jobs/check_gpu.sh $(T)
demo: setup
	@$(MAKE) --no-print-directory -j2 all
	@BUILD=$(BUILD) jobs/demo.sh
bench: all
	@$(BUILD)/m3 bench
soak: all tests
	@BUILD=$(BUILD) tests/soak.sh

clean:
	rm -rf $(BUILD) $(BUILD)-san

.PHONY: all tests clean help setup check check-gpu demo bench soak
.SECONDARY:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
