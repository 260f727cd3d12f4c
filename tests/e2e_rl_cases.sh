#!/bin/bash
# The golden RL cases through build/tests/rl_cases; and a file with one wrong number, which must be told.
cd "$(dirname "$0")/.." || exit 1
program=${BUILD:-build}/tests/rl_cases file=tests/data/golden/rl/rl_cases.json
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

if out=$("$program" $file); then passed=$((passed + 1))
else failed=$((failed + 1)); fi
echo "$out"

sed 's/"loss": 0.05310420814608901/"loss": 0.05310421814608901/' $file >"$dir/wrong.json"
if out=$("$program" "$dir/wrong.json"); then echo "a wrong loss passed: $out"; failed=$((failed + 1))
elif grep -q '^grpo_plain: loss = 0.0531042081.*, expected 0.0531042181' <<<"$out"; then passed=$((passed + 1))
else echo "$out"; failed=$((failed + 1)); fi

for broken in '' '{' '[]' '{"a": 1}' '{"a": {"rewards": [1], "groups": [0, 1], "logp": [[0]]}}'; do
    echo "$broken" >"$dir/broken.json"
    "$program" "$dir/broken.json" >"$dir/out" 2>&1; status=$?
    if [ $status = 1 ] && grep -q ' 1 failed$' "$dir/out"; then passed=$((passed + 1))
    else echo "'$broken': status $status"; cat "$dir/out"; failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
