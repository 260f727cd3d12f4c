#!/bin/bash
# The long tests: make soak, or BUILD=build tests/soak.sh [NAME...]. One function soak_NAME a soak; each prints what it saw
# and returns 0 when it holds. A short form of each is in make check.
cd "$(dirname "$0")/.." || exit 1
export BUILD=${BUILD:-build} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
m3=$BUILD/m3
dir=$(mktemp -d "${TMPDIR:-/tmp}/m3_soak.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT

# 600 steps of the demo: the process has the size at the end that it had after 100.
soak_memory() { MEMORY_STEPS=600 MEMORY_FROM=100 bash tests/e2e_memory.sh; }
# GRPO from three seeds: each ends above 0.7.
soak_grpo() { bash tests/e2e_grpo.sh 1 2 3; }

# Twenty kills at random points, of one rank or all, with and without the spill.
soak_crash() { bash tests/e2e_crash.sh 20; }

run() {
    local start=$SECONDS
    if "soak_$1" >"$dir/$1.log" 2>&1; then echo "ok    $1 $((SECONDS - start))s"; passed=$((passed + 1))
    else echo "FAIL  $1"; tail -n 60 "$dir/$1.log"; failed=$((failed + 1)); fi
}
passed=0 failed=0
for name in $(compgen -A function soak_ | sed 's/^soak_//'); do
    [ $# = 0 ] || [[ " $* " = *" $name "* ]] || continue
    run "$name"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
