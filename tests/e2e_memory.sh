#!/bin/bash
# Memory stays flat over steps: what a training run plans never changes, and what the process holds after MEMORY_STEPS (30)
# is what it held after MEMORY_FROM (10), give or take 1 MiB. SFT with evaluations and checkpoints, and generating.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
steps=${MEMORY_STEPS:-30} from=${MEMORY_FROM:-10}
for i in $(seq 0 63); do # sequences of 20 to 140 tokens
    printf '{"input_ids": ['; for t in $(seq 1 $((20 + i * 53 % 121))); do printf '%s%d' "$([ "$t" = 1 ] || echo ,)" $(((i * 37 + t * t * 11) % 250)); done; echo ']}'
done >"$dir/tokens.jsonl"
cat >"$dir/run.yaml" <<Y
model: {checkpoint: $golden/wide/checkpoint}
run: {device: cpu, dir: $dir/run, threads: 2}
train: {steps: $steps, global_batch: 8, micro_batch_tokens: 256, lr: 1e-4, warmup_steps: 0}
data: {train: $dir/tokens.jsonl, eval: $dir/tokens.jsonl, format: tokens}
eval: {every: 5, samples: 8}
checkpoint: {every: 7, keep: 2}
Y
grown() {
    local a b
    a=$(metric "$dir/run/metrics.jsonl" "$from" resident_bytes) b=$(metric "$dir/run/metrics.jsonl" "$steps" resident_bytes)
    echo "resident after $from steps: $a bytes, after $steps: $b"
    [ "${a:-0}" -gt 0 ] && [ $((b - a)) -le 1048576 ]
}
check "train" "$m3" train "$dir/run.yaml"
for what in weights gradients activations adam; do
    first=$(metric "$dir/run/metrics.jsonl" 1 memory_${what}_bytes)
    check "memory of $what is known" test "${first:-0}" -gt 0
    check "memory of $what stays" within 0 "$(metric "$dir/run/metrics.jsonl" "$steps" memory_${what}_bytes)" "$first"
done
check "the process does not grow" grown
grown
finish
