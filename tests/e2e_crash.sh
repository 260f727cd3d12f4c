#!/bin/bash
# Runs that die: one rank or all of them killed in mid-step, while a checkpoint is written, while the state streams through
# the disk. The same command always goes on from a complete checkpoint and the curve is that of a run that never stopped.
# Then full disks and damaged files. tests/e2e_crash.sh [KILLS]: how many random kills besides (make soak: 20).
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
for i in $(seq 0 15); do
    printf '{"input_ids": ['
    for t in $(seq 1 $((12 + i % 5))); do printf '%s%d' "$([ "$t" = 1 ] || echo ,)" $(((i * 37 + t * t * 11) % 250)); done
    printf ']}\n'
done >"$dir/tokens.jsonl"
cat >"$dir/run.yaml" <<Y
model: {checkpoint: $golden/narrow/checkpoint}
run: {device: cpu, seed: 3, threads: 1}
train: {steps: 24, global_batch: 4, micro_batch_tokens: 40, lr: 1e-3, lr_schedule: constant}
data: {train: $dir/tokens.jsonl, format: tokens}
adam: {bucket_mb: 1}
checkpoint: {every: 2, keep: 3}
comm: {timeout_s: 60}
Y
run() { local out=$1; shift; mpirun -n 2 "$m3" train "$dir/run.yaml" run.dir="$dir/$out" mesh.tp=2 "$@"; }
numbers() { sed -nE 's/.*"step": ?([0-9]+),.*"loss": ?([^,]+),"grad_norm": ?([^,]+),.*/\1 \2 \3/p' "$dir/$1/metrics.jsonl"; }
ranks_of() { pgrep -f "m3 train $dir/run.yaml run.dir=$dir/$1 " | while read -r p; do [ "$(cat /proc/$p/comm 2>/dev/null)" = m3 ] && echo "$p"; done; }
# killed OUT WHO CONDITION ARGUMENTS...: starts a run, waits until the condition holds, kills one rank or all, waits for the end
killed() {
    local out=$1 who=$2 condition=$3 deadline=$((SECONDS + 60)) pid victims; shift 3
    run "$out" "$@" >"$dir/killed.log" 2>&1 & pid=$!
    while kill -0 $pid 2>/dev/null && ! eval "$condition" && [ $SECONDS -lt $deadline ]; do :; done
    victims=$(ranks_of "$out")
    [ "$who" = one ] && victims=$(tail -n 1 <<<"$victims")
    [ -n "$victims" ] && kill -9 $victims 2>/dev/null
    while kill -0 $pid 2>/dev/null && [ $SECONDS -lt $deadline ]; do read -rt 0.1 <> <(:); done
    if kill -0 $pid 2>/dev/null; then kill -9 $pid $(ranks_of "$out"); return 1; fi
    wait $pid && [ -n "$victims" ] && return 0 # it was faster than we
    return 0
}

check "undisturbed" run whole
step_is() { [ "$(tail -n 1 "$dir/$1/metrics.jsonl" 2>/dev/null | sed -nE 's/^\{"step": ?([0-9]+),.*/\1/p')" -ge "$2" ] 2>/dev/null; }
try() {
    local name=$1 who=$2 condition=$3; shift 3
    check "$name: the job ends" killed "$name" "$who" "$condition" "$@"
    check "$name: the same command goes on" run "$name" "$@"
    check "$name: the curve is the same" cmp <(numbers whole) <(numbers "$name")
    check "$name: the state is the same" "$m3" inspect "$dir/whole" --diff "$dir/$name"
}
try step_one one 'step_is step_one 3'
try step_all all 'step_is step_all 7'
try checkpoint_one one 'compgen -G "$dir/checkpoint_one/checkpoints/step_*.tmp" >/dev/null'
try checkpoint_all all 'compgen -G "$dir/checkpoint_all/checkpoints/step_0000001*.tmp" >/dev/null'
try spill_all all 'step_is spill_all 5' adam.spill_dir="$dir/disk"
for k in $(seq 1 "${1:-0}"); do
    at=$((RANDOM % 20)) who=$([ $((RANDOM % 2)) = 0 ] && echo one || echo all)
    try "random$k" $who "step_is random$k $at" adam.spill_dir="$([ $((RANDOM % 2)) = 0 ] && echo "$dir/disk")"
done

mkdir "$dir/small"
if mount -t tmpfs -o size=20m tmpfs "$dir/small" 2>/dev/null; then
    trap 'umount "$dir/small" 2>/dev/null; rm -rf "$dir"' EXIT
    check "a run on a small disk" run small/run train.steps=2
    dd if=/dev/zero of="$dir/small/filler" bs=64k status=none 2>/dev/null
    rm -f "$dir/small/run/log.rank0001.txt"
    run small/run >"$dir/full.log" 2>&1; status=$?
    check "a full disk ends the run with status 1" test $status = 1
    check "and says so" grep -qi "no space" "$dir/full.log"
    check "the last good checkpoint is whole" "$m3" inspect "$dir/small/run@2" --verify
    rm "$dir/small/filler"
    check "with room again it goes on" run small/run
    check "as if nothing had been" cmp <(numbers whole) <(numbers small/run)
    umount "$dir/small"
else
    echo "no tmpfs may be mounted here: the full disk was not tried"
fi

newest=$dir/whole/checkpoints/step_00000024
damage() { rm -rf "$dir/bad"; cp -r "$dir/whole" "$dir/bad"; }
damage
size=$(stat -c %s "$newest/model.h5")
printf '\x5a' | dd of="$dir/bad/checkpoints/step_00000024/model.h5" bs=1 seek=$((size / 2)) conv=notrunc status=none
refuses "a flipped byte is found with the tensor's name" 1 "/model/language_model" "$m3" train "$dir/run.yaml" run.dir="$dir/bad" train.steps=25
damage
printf 'garbage' >"$dir/bad/checkpoints/step_00000024/optimizer.h5"
check "a file that is none is passed over" "$m3" train "$dir/run.yaml" run.dir="$dir/bad"
check "and told" grep -q "step_00000024 is passed over" "$dir/bad/log.txt"
finish
