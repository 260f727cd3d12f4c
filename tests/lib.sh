# What the command-line tests share. Source it, use `check NAME COMMAND...`, end with `finish`.
m3=${BUILD:-build}/m3
bin=${BUILD:-build}/tests
golden=tests/data/golden
dir=$(mktemp -d "${TMPDIR:-/tmp}/m3_e2e.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

# check NAME COMMAND...: passes when the command succeeds
check() {
    local name=$1; shift
    if "$@" >"$dir/out" 2>&1; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "failed: $name: $* -> $?"; tail -n 20 "$dir/out"; fi
}
# refuses NAME STATUS TEXT COMMAND...: passes when the command ends with that status and its output contains the text
refuses() {
    local name=$1 want=$2 text=$3 status; shift 3
    "$@" >"$dir/out" 2>&1; status=$?
    if [ $status = "$want" ] && grep -qF -- "$text" "$dir/out"; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "failed: $name: $* -> $status (expected $want and \"$text\")"; tail -n 20 "$dir/out"; fi
}
# the last line of a compare program is `N passed, N failed`: adds it up
compare() {
    local name=$1 line; shift
    "$@" >"$dir/out" 2>&1
    line=$(tail -n 1 "$dir/out")
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]] && [ "${BASH_REMATCH[1]}" -gt 0 ]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
        [ "${BASH_REMATCH[2]}" = 0 ] || { echo "failed: $name:"; cat "$dir/out"; }
    else failed=$((failed + 1)); echo "failed: $name: $*"; tail -n 20 "$dir/out"; fi
}
# metric FILE STEP NAME: a number of a metrics.jsonl
metric() { sed -nE "s/^\{\"step\": ?$2,.*\"$3\": ?([^,}]+).*/\1/p" "$1"; }
# within TOL A B: relative difference
within() { awk -v t="$1" -v a="$2" -v b="$3" 'BEGIN {d = a - b; if (d < 0) d = -d; m = b < 0 ? -b : b
                                              if (a == "" || b == "" || !(d <= t * m)) {print a, b; exit 1}}'; }
finish() { echo "$passed passed, $failed failed"; [ $failed = 0 ] && [ $passed -gt 0 ]; exit; }
