#!/bin/bash
# m3 report on real runs: the table and the picture, two runs side by side, a run that is still writing, and what it refuses.
. tests/lib.sh
for i in $(seq 0 7); do printf '{"input_ids": [%d, %d, %d], "label": "%d"}\n' $((i * 7 % 250)) $((i * 13 % 250)) $((i * 29 % 250)) "$i"; done >"$dir/prompts.jsonl"
rl=(model.checkpoint=$golden/narrow/checkpoint run.device=cpu data.train="$dir/prompts.jsonl" data.format=tokens data.max_tokens=8
    train.objective=rl train.steps=3 train.micro_batch_tokens=64 rl.prompts_per_step=2 rollout.samples_per_prompt=2
    rollout.max_new_tokens=6 rollout.max_batch=4 reward.kind=pseudo_random ref.report=true)
echo "{}" >"$dir/rl.yaml"
check "a run" "$m3" train "$dir/rl.yaml" "${rl[@]}" run.dir="$dir/a"
check "another run" "$m3" train "$dir/rl.yaml" "${rl[@]}" run.dir="$dir/b" train.lr=1e-3
check "a plan is told beside what was taken" grep -q 'every rank within [0-2]\.[0-9]% of its plan' "$dir/a/log.txt"

check "report" "$m3" report "$dir/a"
"$m3" report "$dir/a" >"$dir/table" 2>&1
for name in loss reward_mean train_rollout_logprob_abs_diff ppo_kl ref_kl grad_norm response_length tokens_per_s rollout_tokens_per_s \
            time_rollout_s time_forward_backward_s time_adam_s memory_weights_bytes memory_activations_bytes; do
    check "$name has a row" grep -qE "^$name +[^ ]" "$dir/table"
done
check "steps are counted" grep -q '^a: 3 steps, the last is 3$' "$dir/table"
if command -v gnuplot >/dev/null; then
    check "the picture is a PNG" cmp -n 8 "$dir/a/report.png" <(printf '\x89PNG\r\n\x1a\n')
    check "an SVG of three panels" "$m3" report "$dir/a" --out "$dir/x.svg" --panels loss,time,memory
    for title in loss 'seconds of a step by stage' 'peak memory by purpose' rollout weights; do
        check "the SVG has: $title" grep -qF "$title" "$dir/x.svg"
    done
    check "the whole step is no stage" test "$(grep -cE '>step<' "$dir/x.svg")" = 2 # two axes' labels
    check "two runs" "$m3" report "$dir/a" "$dir/b" --out "$dir/two.svg" --panels loss
    check "both are in the key" grep -qF 'training, b' "$dir/two.svg"
fi
"$m3" report "$dir/a" "$dir/b" >"$dir/two" 2>&1
for row in 'loss \[A\]' 'loss \[B\]' 'grad_norm \[B\]'; do check "row $row" grep -qE "^$row " "$dir/two"; done
printf '{"step": 4, "loss": 0.' >>"$dir/a/metrics.jsonl" # a line being written
check "a running job" "$m3" report "$dir/a"
"$m3" report "$dir/a" >"$dir/table" 2>&1
check "its whole lines are shown" grep -q '^a: 3 steps, the last is 3$' "$dir/table"
refuses "an unknown panel" 2 "no panel 'losses'" "$m3" report "$dir/a" --panels loss,losses
refuses "no run" 1 "metrics.jsonl" "$m3" report "$dir"
finish
