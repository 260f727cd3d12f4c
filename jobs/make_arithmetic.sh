#!/bin/sh
# Additions for the RL demo: DIR/train.jsonl and DIR/held_out.jsonl, lines of {"prompt": "3+5=", "response": "#### 8",
# "label": "8"}. Every pair of operands 0..LARGEST is in exactly one of the two, one in eight held out, in an order that
# depends on SEED only.
#     jobs/make_arithmetic.sh DIR [LARGEST] [SEED]
set -eu
dir=${1:?"usage: $0 DIR [LARGEST] [SEED]"}
mkdir -p "$dir"
awk -v dir="$dir" -v largest="${2:-9}" -v seed="${3:-1}" '
    # Lehmer, exact in doubles: the same numbers from every awk.
    function draw(n) { state = state * 48271 % 2147483647; return state % n }
    BEGIN {
        if (largest !~ /^[0-9]+$/ || largest > 999 || seed !~ /^[0-9]+$/) {
            print "LARGEST is 0 to 999 and SEED a number" > "/dev/stderr"
            exit 2
        }
        state = seed % 2147483646 + 1
        for (i = 0; i < 20; i++) draw(2)
        for (a = 0; a <= largest; a++) for (b = 0; b <= largest; b++) pair[n++] = a "+" b
        for (i = n - 1; i > 0; i--) { j = draw(i + 1); held = pair[i]; pair[i] = pair[j]; pair[j] = held }
        for (i = 0; i < n; i++) {
            split(pair[i], x, "+")
            sum = x[1] + x[2]
            printf "{\"prompt\": \"%s=\", \"response\": \"#### %d\", \"label\": \"%d\"}\n", pair[i], sum, sum \
                > (dir (i % 8 == 7 ? "/held_out.jsonl" : "/train.jsonl"))
        }
    }'
