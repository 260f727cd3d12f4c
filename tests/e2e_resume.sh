#!/bin/bash
# Stop and resume: bit for bit on the same mesh, within rounding on another; a torn checkpoint is passed over; a stop
# request ends with status 75 and a checkpoint; zero steps and an export give the release back.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
from=$golden/narrow/checkpoint
for i in $(seq 0 15); do
    printf '{"input_ids": ['
    for t in $(seq 1 $((12 + i % 5))); do printf '%s%d' "$([ "$t" = 1 ] || echo ,)" $(((i * 37 + t * t * 11) % 250)); done
    printf ']}\n'
done >"$dir/tokens.jsonl"
cat >"$dir/run.yaml" <<Y
model: {checkpoint: $from}
run: {device: cpu, seed: 3}
train: {steps: 6, global_batch: 4, micro_batch_tokens: 40, lr: 1e-3, warmup_steps: 2, lr_schedule: constant}
data: {train: $dir/tokens.jsonl, format: tokens}
checkpoint: {every: 2, keep: 9}
Y
same() { cmp <(h5dump -d "/model/language_model.model.layers.2.block_sparse_moe.experts.w2.weight" "$1/model.h5" | tail -n +2) \
             <(h5dump -d "/model/language_model.model.layers.2.block_sparse_moe.experts.w2.weight" "$2/model.h5" | tail -n +2); }
losses() { sed -nE 's/.*"step": ?([0-9]+),.*"loss": ?([^,]+),.*"grad_norm": ?([^,]+),.*/\1 \2 \3/p' "$1/metrics.jsonl"; }
near() { paste <(losses "$1") <(losses "$2") | awk '{d = $2 - $5; if (d < 0) d = -d; if ($1 != $4 || d > 1e-5 * $5) exit 1; n++}
                                                   END {exit n != 6}'; }

check "whole run" "$m3" train "$dir/run.yaml" run.dir="$dir/whole"
check "first half" "$m3" train "$dir/run.yaml" run.dir="$dir/half" train.steps=4
check "second half" "$m3" train "$dir/run.yaml" run.dir="$dir/half"
check "losses equal" cmp <(losses "$dir/whole") <(losses "$dir/half")
check "weights equal" same "$dir/whole/checkpoints/step_00000006" "$dir/half/checkpoints/step_00000006"

check "first steps on one rank" "$m3" train "$dir/run.yaml" run.dir="$dir/moved" train.steps=2
check "then on tp2 x dp2" mpirun -n 4 "$m3" train "$dir/run.yaml" run.dir="$dir/moved" train.steps=4 mesh.tp=2 mesh.ep=2
check "then on pp2" mpirun -n 2 "$m3" train "$dir/run.yaml" run.dir="$dir/moved" mesh.pp=2
check "losses near" near "$dir/whole" "$dir/moved"

cp -r "$dir/whole" "$dir/torn"
truncate -s -100 "$dir/torn/checkpoints/step_00000006/model.h5"
mkdir "$dir/torn/checkpoints/step_00000008.tmp"
check "torn checkpoint is passed over" "$m3" train "$dir/run.yaml" run.dir="$dir/torn"
check "and said so" grep -q "step_00000006 is passed over" "$dir/torn/log.txt"
check "losses equal after the torn one" cmp <(losses "$dir/whole") <(losses "$dir/torn")

mkdir "$dir/stopped"
touch "$dir/stopped/stop"
refuses "stop file" 75 "stopped at step 1 of 6 with a checkpoint" "$m3" train "$dir/run.yaml" run.dir="$dir/stopped"
rm "$dir/stopped/stop"
check "goes on after the stop" "$m3" train "$dir/run.yaml" run.dir="$dir/stopped"
check "losses equal after the stop" cmp <(losses "$dir/whole") <(losses "$dir/stopped")

refuses "changed config" 2 "train.global_batch" "$m3" train "$dir/run.yaml" run.dir="$dir/whole" train.global_batch=8
check "fresh" "$m3" train "$dir/run.yaml" run.dir="$dir/whole" train.global_batch=8 --fresh
check "the old run is kept" test -f "$dir/whole.1/metrics.jsonl"

for case in narrow wide; do
    check "$case zero steps" "$m3" train "$dir/run.yaml" model.checkpoint=$golden/$case/checkpoint run.dir="$dir/zero_$case" train.steps=0
    check "$case export" "$m3" export "$dir/zero_$case" "$dir/zero_$case/release"
    check "$case config is the same" cmp $golden/$case/checkpoint/config.json "$dir/zero_$case/release/config.json"
    compare "$case tensors are the same" "$bin/st_same" $golden/$case/checkpoint "$dir/zero_$case/release"
done
finish
