#!/bin/bash
# RL through the command line: the same samples and losses on any mesh, the gap and the first step's ratio, records and
# replay, resume, options of the loss, stops and gates.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
from=$golden/narrow/checkpoint
for i in $(seq 0 11); do
    printf '{"label": "%d", "input_ids": [' "$i"
    for t in $(seq 1 $((9 + i % 6))); do printf '%s%d' "$([ "$t" = 1 ] || echo ,)" $(((i * 37 + t * t * 11) % 250)); done
    printf ']}\n'
done >"$dir/prompts.jsonl"
cat >"$dir/rl.yaml" <<Y
model: {checkpoint: $from}
run: {device: cpu, seed: 3, threads: 1}
train: {objective: rl, steps: 5, micro_batch_tokens: 90, lr: 1e-4, eps: 1e-6, lr_schedule: constant}
data: {train: $dir/prompts.jsonl}
rl: {prompts_per_step: 4, check_weight_update_equal: true}
rollout: {samples_per_prompt: 4, max_new_tokens: 12, max_batch: 7}
reward: {kind: pseudo_random}
gates: {ppo_kl: 1e-9, clip_fraction: 1e-10, logprob_abs_diff: 1e-5, mean_logprob_diff: 1e-5}
checkpoint: {keep: 9}
Y
rl() { local out=$1 n=$2; shift 2; mpirun -n "$n" "$m3" train "$dir/rl.yaml" run.dir="$dir/$out" "$@"; }
field() { grep -ohE "\"$2\":[^]}]*" "$dir/$1"/rollouts/*.jsonl; }                # response_ids and the like, in order
samples() { field "$1" response_ids; }
numbers() { sed -nE 's/.*"step": ?([0-9]+),.*"loss": ?([^,]+),"grad_norm": ?([^,]+),.*/\1 \2 \3/p' "$dir/$1/metrics.jsonl"; }
# near A B TOL: losses (absolute) and gradient norms (relative) of two runs, step by step
near() { paste <(numbers "$1") <(numbers "$2") | awk -v tol="$3" '
    function abs(x) {return x < 0 ? -x : x}
    NF < 6 {exit}
    {if ($1 != $4 || abs($2 - $5) > tol || abs($3 - $6) > tol * $6) {print; bad = 1} n++} END {exit bad || !n}'; }
value() { metric "$dir/$1/metrics.jsonl" "$2" "$3"; }
# all NAME RUN CONDITION: an awk condition on x holds for the metric in every step
every() { local run=$1 name=$2 condition=$3
          sed -nE "s/.*\"$name\": ?([^,}]+).*/\1/p" "$dir/$run/metrics.jsonl" | awk '{x = $1; if (!('"$condition"')) {print x; bad = 1} n++} END {exit bad || !n}'; }

check "one rank" rl one 1
check "the gap is rounding" every one train_rollout_logprob_abs_diff 'x > 0 && x < 1e-5'
check "the first ratio is 1" every one ppo_kl 'x == 0'
check "weights were updated five times" within 0 "$(value one 5 weight_syncs)" 5
check "rewards differ within groups" every one reward_std 'x > 0.1'
for mesh in "4 mesh.tp=2 mesh.pp=2" "4 mesh.tp=2 mesh.ep=4 rollout.tp=1 rollout.ep=2" "8 mesh.tp=2 mesh.pp=2 mesh.ep=2 rollout.tp=2 rollout.ep=4"; do
    set -- $mesh
    out=mesh_$1_${2#mesh.}_${3#mesh.}
    check "$mesh" rl "$out" "$@"
    check "$mesh: the same samples" cmp <(samples one) <(samples "$out")
    check "$mesh: the same losses" near one "$out" 1e-4
    check "$mesh: the gap is rounding" every "$out" train_rollout_logprob_abs_diff 'x > 0 && x < 1e-5'
done
check "small micro-batches" rl small 1 train.steps=1 train.micro_batch_tokens=1
check "no difference" near small one 1e-6
check "layers recomputed" rl recompute 1 train.steps=1 train.recompute=layer
check "no difference" near recompute one 1e-6

for mesh in "1" "2 mesh.tp=2" "4 mesh.ep=4" "4 rollout.dp=4"; do
    set -- $mesh
    check "greedy on $mesh" rl "greedy_$1_${2:-}" "$@" rollout.only=true train.steps=1 rollout.temperature=0 rl.prompts_per_step=8 rollout.samples_per_prompt=1
    check "greedy on $mesh: the same tokens" cmp <(samples greedy_1_) <(samples "greedy_$1_${2:-}")
done

check "learning rate 0" rl still 2 train.lr=0 train.weight_decay=0 train.steps=20 rl.prompts_per_step=1 mesh.pp=2
check "the weights' hash stays" test "$(grep -oE '"weights_hash":[0-9]+' "$dir/still/metrics.jsonl" | sort -u | wc -l)" = 1
check "the gap stays" every still train_rollout_logprob_abs_diff 'x < 1e-5'

check "half" rl half 1 train.steps=2
check "the other half" rl half 1
check "resume is exact" cmp <(numbers one) <(numbers half)
check "and takes the same samples" cmp <(samples one) <(samples half)

check "replay" rl replay 2 train.replay="$dir/one/rollouts" train.steps=1 mesh.tp=2
check "replay gives the same update" near replay one 1e-5
sed 's/"response_ids":\[[0-9]*,/"response_ids":[300000,/' "$dir/one/rollouts/step_00000001.jsonl" >"$dir/bad.jsonl"
refuses "a record with an id beyond the vocabulary" 1 "bad.jsonl:1: response_ids[0]" rl bad 1 train.replay="$dir/bad.jsonl"
refuses "records that end" 1 "the records end here" rl short 1 train.replay="$dir/one/rollouts/step_00000001.jsonl" train.steps=2

check "all of the loss" rl all 4 mesh.tp=2 mesh.pp=2 rl.algorithm=gspo rl.tis=true rl.kl_coef=0.1 rl.entropy_coef=0.01 rl.aggregation=token_mean \
    rl.updates_per_batch=2 rl.routing_replay=true rl.overlong_buffer=4 gates.ref_kl=1e-8 moe.bias_update_rate=1e-3
check "the reference is where it started" every all ref_kl 'x >= 0'
check "all of the loss on one rank" rl all1 1 rl.algorithm=gspo rl.tis=true rl.kl_coef=0.1 rl.entropy_coef=0.01 rl.aggregation=token_mean \
    rl.updates_per_batch=2 rl.routing_replay=true rl.overlong_buffer=4 gates.ref_kl=1e-8 moe.bias_update_rate=1e-3
check "the same there" near all all1 1e-4
check "truncated samples masked" rl masked 2 rl.mask_truncated=true mesh.tp=2 rollout.max_new_tokens=60 train.steps=1
check "they are dropped" awk -v a="$(value masked 1 dropped_samples)" -v b="$(value masked 1 truncated_fraction)" 'BEGIN {exit !(a > 0 && a == 16 * b)}'
check "old from the rollout" rl old 1 rl.old_logprobs=rollout gates.ppo_kl=unset gates.clip_fraction=unset train.steps=2

refuses "a gate" 3 "logprob_abs_diff" rl gate 1 gates.logprob_abs_diff=1e-12
check "the step before the gate is told" test -n "$(value gate 1 train_rollout_logprob_abs_diff)"
refuses "flat rewards for ever" 3 "rl.max_refills=2" rl flat 1 rl.dynamic_sampling=true rl.max_refills=2 reward.kind=length reward.target_length=1000000
check "no flat group: no refill" rl refill 1 rl.dynamic_sampling=true train.steps=1
check "none was made" within 0 "$(value refill 1 refills)" 0

mkdir "$dir/stopped"
touch "$dir/stopped/stop"
refuses "a stop while generating" 75 "with a checkpoint" rl stopped 4 mesh.tp=2 rollout.tp=1
check "nothing was trained" test ! -s "$dir/stopped/metrics.jsonl"
rm "$dir/stopped/stop"
check "and on" rl stopped 4 mesh.tp=2 rollout.tp=1
check "as if nothing had been" near stopped one 1e-4
finish
