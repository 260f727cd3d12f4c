#!/bin/bash
# Checkpoints between meshes: saved on one, loaded on another. Weights saved again are equal; a step at learning rate 0, which
# takes master weights as they are and moves moments by the gradient, gives the same on both.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
for i in $(seq 0 7); do
    printf '{"input_ids": ['
    for t in $(seq 1 $((12 + i % 5))); do printf '%s%d' "$([ "$t" = 1 ] || echo ,)" $(((i * 37 + t * t * 11) % 250)); done
    printf ']}\n'
done >"$dir/tokens.jsonl"
cat >"$dir/run.yaml" <<Y
model: {checkpoint: $golden/narrow/checkpoint}
run: {device: cpu, seed: 3, threads: 1}
train: {steps: 2, global_batch: 4, micro_batch_tokens: 40, lr: 1e-3, lr_schedule: constant}
data: {train: $dir/tokens.jsonl, format: tokens}
adam: {bucket_mb: 1}
Y
meshes=("1" "2 mesh.tp=2" "2 mesh.pp=2" "4 mesh.tp=2 mesh.ep=4" "4 mesh.ep=4" "8 mesh.tp=4 mesh.pp=2 mesh.ep=4" "8 mesh.tp=8 mesh.ep=8" "4 mesh.pp=4 mesh.layers_per_stage=[1,1,1,1]")
at() { local out=$1 n=$2; shift 2; mpirun -n "$n" "$m3" train "$dir/run.yaml" run.dir="$dir/$out" "$@"; }
for k in "${!meshes[@]}"; do
    check "saved on ${meshes[k]}" at "from$k" ${meshes[k]}
    cp -r "$dir/from$k" "$dir/third$k"
    check "a third step there, at learning rate 0" at "third$k" ${meshes[k]} train.steps=3 train.lr=0 train.weight_decay=0
    for d in 1 3; do # two other meshes each
        j=$(((k + d) % ${#meshes[@]}))
        rm -rf "$dir/to"
        check "loaded on ${meshes[j]}" at to ${meshes[j]} model.checkpoint="$dir/from$k" train.steps=0
        check "${meshes[k]} -> ${meshes[j]}: weights equal" "$m3" inspect "$dir/from$k/checkpoints/step_00000002/model.h5" --diff "$dir/to/checkpoints/step_00000000/model.h5"
        rm -rf "$dir/moved"; cp -r "$dir/from$k" "$dir/moved"
        check "a third step on ${meshes[j]}" at moved ${meshes[j]} train.steps=3 train.lr=0 train.weight_decay=0
        check "${meshes[k]} -> ${meshes[j]}: moments and master weights" "$m3" inspect "$dir/third$k" --diff "$dir/moved" --tolerance 1e-6
    done
done
finish
