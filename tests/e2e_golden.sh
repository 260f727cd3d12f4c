#!/bin/bash
# The golden cases through the command line: score, greedy decoding, three AdamW steps, export.
. tests/lib.sh
cat >"$dir/adamw.yaml" <<'Y'
train: {steps: 3, micro_batch_tokens: 512, lr: 1e-3, warmup_steps: 0, weight_decay: 0.1, beta1: 0.9, beta2: 0.95,
        eps: 1e-8, clip_grad: 1.0, lr_schedule: constant}
data: {format: tokens, shuffle: false}
Y
# In `wide`, layer 4's block choice of sequence 0, query 108, index head 1 is a tie at the second step that rounding
# decides: the reference's gradients of some 60 elements near eps put it on one side, their exact values (central
# differences in float64 of the model in numpy) and ours on the other. So only its first step is held to the tolerances.
slack_narrow=1 slack_wide=10
for case in narrow wide; do
    slack=slack_$case
    ref=$golden/$case/reference.safetensors from=$golden/$case/checkpoint
    "$bin/golden_compare" tokens $ref >"$dir/tokens.jsonl"
    "$bin/golden_compare" prompt $ref >"$dir/prompt.jsonl"
    samples=$(wc -l <"$dir/tokens.jsonl")
    check "$case score" "$m3" score $from "$dir/tokens.jsonl" "$dir/$case.safetensors" --logits --selections --grads --device cpu
    compare "$case score" "$bin/golden_compare" score $ref "$dir/$case.safetensors"
    check "$case decode" "$m3" generate $from --tokens "$dir/prompt.jsonl" --greedy --ignore-eos --max-new 40 --out "$dir/$case.jsonl" --device cpu
    compare "$case decode" "$bin/golden_compare" decode $ref "$dir/$case.jsonl"
    for recompute in none attention layer; do
        run=$dir/run_${case}_$recompute
        check "$case train $recompute" "$m3" train "$dir/adamw.yaml" model.checkpoint=$from run.dir="$run" run.device=cpu \
            data.train="$dir/tokens.jsonl" train.global_batch="$samples" train.recompute=$recompute
        check "$case export $recompute" "$m3" export "$run" "$run/release"
        compare "$case adamw $recompute" "$bin/golden_compare" adamw $ref "$run/metrics.jsonl" "$run/release" ${!slack}
    done
    # other micro-batches and vocabulary chunks: the same loss and gradient (later steps may part at a near tie)
    run=$dir/small_$case
    check "$case small micro-batches" "$m3" train "$dir/adamw.yaml" model.checkpoint=$from run.dir="$run" run.device=cpu \
        data.train="$dir/tokens.jsonl" train.global_batch="$samples" train.micro_batch_tokens=1 train.logits_chunk=13
    for what in loss grad_norm; do
        check "$case $what" within 1e-6 "$(metric "$run/metrics.jsonl" 1 $what)" "$(metric "$dir/run_${case}_none/metrics.jsonl" 1 $what)"
    done
done
finish
