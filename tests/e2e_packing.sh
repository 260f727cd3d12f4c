#!/bin/bash
# Packed sequences equal the same ones alone: log-probs, logits, hidden states, selections, loss and every gradient; and
# the size of micro-batches changes none of it. Products of other heights are summed in another order, so that single
# tensors differ by float32 rounding (measured: at most 3.2e-6 of a gradient's norm, 1.3e-6 of the logits').
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
score() { check "score $1" "$m3" score $from "$dir/$2.jsonl" "$dir/$1.safetensors" --device cpu --logits --selections "${@:3}"; }
sequence() { printf '{"input_ids": ['; for t in $(seq 1 "$2"); do printf '%s%d' "$([ "$t" = 1 ] || echo ,)" $((($1 * 37 + t * t * 11 + t * 5) % 250)); done; echo ']}'; }
# scalar FILE NAME: a tensor of one float
scalar() {
    local file=$dir/$1.safetensors n at
    n=$(od -An -N8 -t u8 "$file" | tr -d ' ')
    at=$(tail -c +9 "$file" | head -c "$n" | sed -nE "s/.*\"$2\":\{[^}]*\"data_offsets\":\[([0-9]+),.*/\1/p")
    od -An -j $((8 + n + at)) -N4 -t fF "$file" | tr -d ' '
}
for case in narrow wide; do
    from=$golden/$case/checkpoint
    for i in 1 2 3; do sequence $i $((13 + 17 * i)) >"$dir/s$i.jsonl"; done
    # alone in a process; packed with the two others, and first in the file, so that it is number 0 in both
    for order in 123 231 312; do
        cat "$dir/s${order:0:1}.jsonl" "$dir/s${order:1:1}.jsonl" "$dir/s${order:2:1}.jsonl" >"$dir/$order.jsonl"
        score alone "s${order:0:1}"
        score packed $order --micro-batch-tokens 1000
        check "$case: sequence ${order:0:1} of three, packed and alone" "$bin/st_compare" "$dir/packed.safetensors" "$dir/alone.safetensors" 5e-6
    done
    for i in 4 5 6 7 8; do sequence $i $((5 + i * i % 31)); done | cat "$dir/123.jsonl" - >"$dir/eight.jsonl"
    score one eight --grads
    for n in 50 97 1000; do
        score many eight --grads --micro-batch-tokens $n
        check "$case: gradients with micro-batches of $n tokens" "$bin/st_compare" "$dir/many.safetensors" "$dir/one.safetensors" 5e-6
        check "$case: loss with micro-batches of $n tokens" within 1e-6 "$(scalar many loss)" "$(scalar one loss)"
        check "$case: gradient norm with micro-batches of $n tokens" within 1e-6 "$(scalar many grad_norm)" "$(scalar one grad_norm)"
        check "$case: nothing is missing with $n tokens" "$bin/st_compare" "$dir/one.safetensors" "$dir/many.safetensors" 5e-6
    done
    sed '2s/}/, "loss_mask": [1,1,1,0,0,0,0,1,1,1'"$(printf ',0,1%.0s' $(seq 18))"',0]}/' "$dir/eight.jsonl" >"$dir/masked.jsonl"
    cat >"$dir/run.yaml" <<Y
model: {checkpoint: $from}
run: {device: cpu}
train: {steps: 1, global_batch: 8, lr_schedule: constant, warmup_steps: 0}
data: {train: $dir/masked.jsonl, format: tokens}
Y
    for n in 1 60 1000; do
        check "$case: train with $n" "$m3" train "$dir/run.yaml" run.dir="$dir/$case$n" train.micro_batch_tokens=$n
        for what in loss grad_norm; do
            check "$case: train's $what with micro-batches of $n tokens" within 1e-6 \
                "$(metric "$dir/$case$n/metrics.jsonl" 1 $what)" "$(metric "$dir/${case}1/metrics.jsonl" 1 $what)"
        done
    done
    check "$case: the micro-batches were eight" within 0 "$(metric "$dir/${case}1/metrics.jsonl" 1 micro_batches)" 8
    check "$case: the micro-batch was one" within 0 "$(metric "$dir/${case}1000/metrics.jsonl" 1 micro_batches)" 1
done
finish
