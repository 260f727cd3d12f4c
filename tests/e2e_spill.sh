#!/bin/bash
# Adam's state streamed through local disk: bit for bit what resident Adam does, in bounded memory; checkpoints from and
# into it; a full disk and a damaged file are told.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
for i in $(seq 0 15); do
    printf '{"input_ids": ['
    for t in $(seq 1 $((12 + i % 5))); do printf '%s%d' "$([ "$t" = 1 ] || echo ,)" $(((i * 37 + t * t * 11) % 250)); done
    printf ']}\n'
done >"$dir/tokens.jsonl"
check "a model of 13 MiB" "$m3" init configs/tiny_m3/config.json "$dir/tiny" --seed 1
cat >"$dir/run.yaml" <<Y
model: {checkpoint: $golden/narrow/checkpoint}
run: {device: cpu, seed: 3, threads: 1}
train: {steps: 20, global_batch: 4, micro_batch_tokens: 40, lr: 1e-3, lr_schedule: constant}
data: {train: $dir/tokens.jsonl, format: tokens}
adam: {bucket_mb: 1}
Y
run() { local out=$1 n=$2; shift 2; mpirun -n "$n" "$m3" train "$dir/run.yaml" run.dir="$dir/$out" "$@"; }
numbers() { sed -nE 's/.*"step": ?([0-9]+),.*"loss": ?([^,]+),"grad_norm": ?([^,]+),.*/\1 \2 \3/p' "$dir/$1/metrics.jsonl"; }
for mesh in "1" "4 mesh.tp=2 mesh.ep=2" "2 mesh.pp=2"; do
    set -- $mesh
    n=$1; shift
    check "$n ranks resident" run "resident$n" "$n" "$@"
    check "$n ranks spilled" run "spilled$n" "$n" "$@" adam.spill_dir="$dir/disk"
    check "$n ranks: twenty equal steps" cmp <(numbers "resident$n") <(numbers "spilled$n")
    check "$n ranks: equal state" "$m3" inspect "$dir/resident$n" --diff "$dir/spilled$n"
done
check "nothing is left on the disk" test -z "$(find "$dir/disk" -name 'state.h5')"
check "the first step only writes" within 0 "$(metric "$dir/spilled1/metrics.jsonl" 1 adam_read_bytes)" 0
check "then as much is read as written" within 0 "$(metric "$dir/spilled1/metrics.jsonl" 2 adam_read_bytes)" "$(metric "$dir/spilled1/metrics.jsonl" 2 adam_written_bytes)"

check "half of it spilled" run half 1 train.steps=10 adam.spill_dir="$dir/disk"
check "the rest resident, on two ranks" run half 2 mesh.tp=2
check "half resident" run half2 1 train.steps=10
check "the rest spilled" run half2 1 adam.spill_dir="$dir/disk"
check "as if nothing had been" "$m3" inspect "$dir/half2" --diff "$dir/resident1"
check "bf16 moments" run bf16 2 mesh.tp=2 adam.moments=bf16 adam.spill_dir="$dir/disk"
check "close to fp32" within 1e-2 "$(metric "$dir/bf16/metrics.jsonl" 20 loss)" "$(metric "$dir/resident1/metrics.jsonl" 20 loss)"
check "bf16 moments, resident" run bf16r 2 mesh.tp=2 adam.moments=bf16
check "equal to the spilled ones" cmp <(numbers bf16) <(numbers bf16r)

check "a larger state" run large 1 model.checkpoint="$dir/tiny" train.steps=2 adam.spill_dir="$dir/disk"
state=$((3 * $(metric "$dir/large/metrics.jsonl" 1 memory_gradients_bytes)))
ring=$(metric "$dir/large/metrics.jsonl" 1 memory_adam_bytes)
check "is 4 times and more what stays in memory, 4 buckets at most" awk -v s="$state" -v r="$ring" 'BEGIN {exit !(r > 0 && s >= 4 * r && r <= 4 * 3 * 1048576 + 65536)}'

mkdir "$dir/small"
if mount -t tmpfs -o size=8m tmpfs "$dir/small" 2>/dev/null; then
    refuses "a disk that is too small" 1 "free" run full 2 mesh.tp=2 model.checkpoint="$dir/tiny" adam.spill_dir="$dir/small"
    check "leaves nothing there" test -z "$(find "$dir/small" -name '*.h5')"
    umount "$dir/small"
else
    echo "no tmpfs may be mounted here: the full disk was not tried"
fi
finish
