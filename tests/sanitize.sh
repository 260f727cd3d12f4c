#!/bin/bash
# The readers of outside files and the CPU's ops under AddressSanitizer and UndefinedBehaviorSanitizer: their own tests,
# which feed them mutated files. Built in a folder beside the ordinary build. Prints `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}-san
tests="test_safetensors test_safetensors_write test_release test_quant test_quant_map test_arch test_config test_cli
       test_tokenizer test_tokenizer_file test_split test_chat test_data test_mutated test_metrics test_hdf5 test_gate
       test_math_answer test_reward test_ops"
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export OMP_NUM_THREADS=2
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
passed=0 failed=0

# shellcheck disable=SC2086
if ! make --no-print-directory -j2 BUILD="$build" SAN=1 CUDA=0 $(printf "$build/tests/%s " $tests) >"$logs/make" 2>&1; then
    tail -n 20 "$logs/make"
    echo "0 passed, 1 failed"
    exit 1
fi
# one NAME: its output and, as the last line, its status
one() { timeout -k 5 300 "$build/tests/$1" >"$logs/$1" 2>&1; echo "status $?" >>"$logs/$1"; }
one test_ops & # the longest, beside the others
for t in ${tests% test_ops}; do one "$t"; done
wait
for t in $tests; do
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$logs/$t" | tail -n 1)
    n=${line%% *}
    if [ "$(tail -n 1 "$logs/$t")" = "status 0" ] && [ "${n:-0}" -gt 0 ] && ! grep -qE 'Sanitizer|runtime error:' "$logs/$t"; then
        passed=$((passed + n))
    else
        failed=$((failed + 1))
        echo "failed: $t under sanitizers"
        grep -vE '^\[ +(RUN|OK|=+) ' "$logs/$t" | tail -n 40
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
