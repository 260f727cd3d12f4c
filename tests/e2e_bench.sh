#!/bin/bash
# m3 bench: every part runs, every op of the table has a row, rows are JSON objects, nothing is left behind.
. tests/lib.sh
export TMPDIR=$dir OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
row='^\{"part": "[a-z]+", "name": "[^"]+", "shape": "[^"]*", "device": "cpu", "ms": [0-9.e+-]+(, "[a-z_]+": [0-9.e+-]+)*\}$'
bench() { "$m3" bench "$@" --device cpu --seconds 0.0001 --json >"$dir/rows" 2>"$dir/err"; }
check "ops" bench ops
check "rows" bash -c '! grep -vE "$1" "$2"' - "$row" "$dir/rows"
for op in $(grep -v define kernels/ops_cpu.c | grep -oE ' SLOT\([a-z_]+\)' | sed -E 's/.*\((.*)\)/\1/'); do
    case $op in open | close | alloc | release | copy | zero | wait | *_work) continue ;; esac
    check "a row of $op" grep -qE "\"name\": \"$op[ \"]" "$dir/rows"
done
check "train and decode" bench train decode
check "rows" bash -c '! grep -vE "$1" "$2"' - "$row" "$dir/rows"
for name in step forward_backward adam generate; do check "a row of $name" grep -q "\"name\": \"$name\"" "$dir/rows"; done
check "io" bench io --dir "$dir"
refuses "comm on two ranks" 0 "all_to_all             2 ranks" mpirun --oversubscribe -n 2 "$m3" bench comm --device cpu --seconds 0.0001
refuses "no such part" 2 "no bench \"speed\"" "$m3" bench speed
check "nothing is left" bash -c '! ls -d "$1"/m3_bench.* 2>/dev/null' - "$dir"
finish
