#!/bin/bash
# Rewards through the command line: the arithmetic's data and its checker, a command of the user's that fails in every
# way, NaN rewards, and what is refused at the start.
. tests/lib.sh
check "additions" jobs/make_arithmetic.sh "$dir/sums" 9 1
check "every sum once" test "$(sort -u "$dir/sums/train.jsonl" "$dir/sums/held_out.jsonl" | wc -l)" = 100
check "one in eight is held out" test "$(wc -l <"$dir/sums/held_out.jsonl")" = 12
check "labels are the sums" awk -F'[^0-9]+' '{if ($2 + $3 != $4 || $4 != $5) {print; bad = 1} n++} END {exit bad || !n}' \
    "$dir/sums/train.jsonl" "$dir/sums/held_out.jsonl"
check "the same again" jobs/make_arithmetic.sh "$dir/again" 9 1
check "bit by bit" cmp "$dir/sums/train.jsonl" "$dir/again/train.jsonl"
check "another seed" jobs/make_arithmetic.sh "$dir/other" 9 2
check "another order" test "$(cksum <"$dir/sums/train.jsonl")" != "$(cksum <"$dir/other/train.jsonl")"
refuses "a bad range" 2 "LARGEST" jobs/make_arithmetic.sh "$dir/bad" x

check "a model" "$m3" init configs/tiny_rl/config.json "$dir/init" --seed 1
cat >"$dir/rl.yaml" <<Y
model: {checkpoint: $dir/init}
run: {device: cpu, threads: 1}
train: {objective: rl, steps: 1, micro_batch_tokens: 512}
data: {train: $dir/sums/train.jsonl, chat: false}
rl: {prompts_per_step: 2}
rollout: {samples_per_prompt: 4, max_new_tokens: 6}
Y
rl() { local out=$1; shift; "$m3" train "$dir/rl.yaml" run.dir="$dir/$out" "$@"; }
script() { printf '#!/bin/sh\n%s\n' "$2" >"$dir/bin/$1"; chmod 700 "$dir/bin/$1"; }
value() { metric "$dir/$1/metrics.jsonl" 1 "$2"; }
mkdir "$dir/bin"
ran() { test -s "$dir/$1/metrics.jsonl"; }

script lengths 'awk "{print length(\$0) / 1000}"'
check "a command" rl lengths reward.kind=command reward.command="$dir/bin/lengths"
check "its rewards count" test "$(value lengths reward_mean)" != 0
script one_nan 'awk "{print NR == 3 ? \"nan\" : NR}"'
check "a NaN reward" rl one_nan reward.kind=command reward.command="$dir/bin/one_nan"
check "is counted" within 0 "$(value one_nan nan_rewards)" 1
check "drops its sample" within 0 "$(value one_nan dropped_samples)" 1
check "and nothing else" awk -v x="$(value one_nan grad_norm)" 'BEGIN {exit !(x > 0)}'
check "and is recorded" test "$(grep -c '"reward":null.*"dropped":true' "$dir/one_nan/rollouts/step_00000001.jsonl")" = 1

script dies 'echo 1; echo "cannot load the judge" >&2; exit 7'
refuses "a command that dies" 1 "status 7; its stderr: cannot load the judge" \
    rl dies reward.kind=command reward.command="$dir/bin/dies"
script hangs 'echo "waiting for the judge" >&2; exec tail -f /dev/null'
refuses "a command that hangs" 1 "reward.timeout_s=0.5: 0 of 8 rewards; its stderr: waiting for the judge" \
    rl hangs reward.kind=command reward.command="$dir/bin/hangs" reward.timeout_s=0.5
script short 'head -n 5 | sed "s/.*/1/"; echo "out of memory" >&2'
refuses "a command that prints too few lines" 1 "5 lines for 8 samples; its stderr: out of memory" \
    rl short reward.kind=command reward.command="$dir/bin/short"
script words 'sed "s/.*/good/"'
refuses "a command that prints words" 1 'line 1 of 8 is "good"' \
    rl words reward.kind=command reward.command="$dir/bin/words"
refuses "a command that is not there" 2 "/no/such/judge" rl none reward.kind=command reward.command=/no/such/judge
for run in dies hangs short words none; do
    if ran $run; then failed=$((failed + 1)); echo "failed: $run trained a step"; else passed=$((passed + 1)); fi
done

check "math" rl math
check "a wrong answer is 0" within 0 "$(value math reward_mean)" 0
check "or -1" rl negative reward.negative=true
check "that is" within 0 "$(value negative reward_mean)" -1
refuses "math without labels" 1 "is no answer" rl unlabelled data.label_field=nothing
refuses "an instruction that the parser does not know" 2 "<answer>42</answer>" \
    rl tags data.instruction="Write <answer>N</answer>."
check "an instruction that it knows" rl asked data.instruction="Write #### N."
check "stands behind the prompt" \
    grep -q '"prompt_ids":\[[0-9,]*,28,198,' "$dir/asked/rollouts/step_00000001.jsonl" # = and a line feed

check "a recorded run" rl recorded reward.kind=pseudo_random train.steps=2
check "the same gradients pass" rl alike reward.kind=pseudo_random train.steps=2 gates.grad_norm_rel=0.03 \
    gates.grad_norm_file="$dir/recorded/metrics.jsonl"
refuses "others do not" 3 "grad_norm" rl unlike reward.kind=pseudo_random run.seed=2 gates.grad_norm_rel=1e-6 \
    gates.grad_norm_file="$dir/recorded/metrics.jsonl"
refuses "nor does a step that was not recorded" 3 "has none for this step" \
    rl longer reward.kind=pseudo_random train.steps=3 gates.grad_norm_rel=0.03 gates.grad_norm_file="$dir/recorded/metrics.jsonl"
refuses "a recorded run that is not there" 1 "gone.jsonl" \
    rl gone gates.grad_norm_rel=0.03 gates.grad_norm_file="$dir/gone.jsonl"
cat >"$dir/sft.yaml" <<Y
model: {checkpoint: $dir/init}
run: {device: cpu, threads: 1}
train: {steps: 3, global_batch: 4, micro_batch_tokens: 512}
data: {train: $dir/sums/train.jsonl, chat: false}
Y
sft() { local out=$1; shift; "$m3" train "$dir/sft.yaml" run.dir="$dir/$out" "$@"; }
check "SFT, recorded" sft sft_recorded
check "the same gradients pass" sft sft_alike gates.grad_norm_rel=0.03 gates.grad_norm_file="$dir/sft_recorded/metrics.jsonl"
refuses "others do not" 3 "grad_norm" sft sft_unlike run.seed=2 gates.grad_norm_rel=1e-6 \
    gates.grad_norm_file="$dir/sft_recorded/metrics.jsonl"
finish
