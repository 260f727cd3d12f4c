#!/bin/bash
# Runs the tests and adds up their closing lines. tests/run.sh [NAME...]: only those whose name contains a NAME.
#   build/tests/test_*   one process          build/tests/mpi_*  under mpirun, `ranks: N` in the source's first line
#   tests/e2e_*.sh       the command line     tests/mesh.list    one mesh a line for mpi_mesh
#   tests/sanitize.sh    readers and ops under sanitizers, in a build of its own
# A test prints `N passed, N failed` (and `, N skipped`) as its closing line; one that does not has failed.
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
export BUILD OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

wanted() {
    local n name=$1; shift
    [ $# = 0 ] && return 0
    for n; do case $name in *"$n"*) return 0 ;; esac; done
    return 1
}

# run NAME COMMAND...: a time limit that no test comes near keeps a hang from holding everything up
run() {
    local name=$1 line start=$SECONDS status p f s; shift
    timeout -k 10 900 "$@" >"$log" 2>&1 </dev/null; status=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    p=$(sed -E 's/^([0-9]+) passed.*/\1/' <<<"$line") f=$(sed -E 's/.* ([0-9]+) failed.*/\1/' <<<"$line") s=0
    case $line in *skipped*) s=$(sed -E 's/.* ([0-9]+) skipped.*/\1/' <<<"$line") ;; esac
    if [ -z "$line" ]; then p=0 f=1; fi
    if [ $status -ne 0 ] && [ "$f" = 0 ]; then f=1; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" = 0 ]; then printf 'ok    %-40s %3d passed %ds\n' "$name" "$p" $((SECONDS - start))
    else printf 'FAIL  %-40s status %d\n' "$name" "$status"; grep -vE '^\[ +(RUN|OK|=+) ' "$log" | tail -n 60; fi
}

for t in tests/test_*.c; do
    name=$(basename "$t" .c)
    wanted "$name" "$@" && run "$name" "$BUILD/tests/$name"
done
for t in tests/mpi_*.c; do
    name=$(basename "$t" .c) ranks=$(sed -nE '1s/.*ranks: ([0-9]+).*/\1/p' "$t")
    [ -n "$ranks" ] && wanted "$name" "$@" && run "$name" mpirun -n "$ranks" "$BUILD/tests/$name"
done
while read -r ranks golden tp pp ep case layers; do
    case $ranks in ''|'#'*) continue ;; esac
    name="mesh $golden tp$tp pp$pp ep$ep ranks$ranks $case $layers"
    wanted "$name" "$@" &&
        run "$name" mpirun -n "$ranks" "$BUILD/tests/mpi_mesh" "tests/data/golden/$golden/checkpoint" "$tp" "$pp" "$ep" "$case" $layers
done <tests/mesh.list
for t in tests/e2e_*.sh; do
    name=$(basename "$t" .sh)
    wanted "$name" "$@" && run "$name" bash "$t"
done
wanted sanitize "$@" && run sanitize bash tests/sanitize.sh
if [ $skipped -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"
else echo "$passed passed, $failed failed"; fi
[ $failed = 0 ] && [ $passed -gt 0 ]
