#!/bin/bash
# m3 plan through the command line: the full model without a GPU and in less than a second of CPU time, numbers that MODEL.md's
# sizes give by hand, refusals with their exit status, sweeps, and one answer for a whole job.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
number() { sed -nE "s/^ *\"$2\": ([0-9.e+-]+),?\$/\1/p" "$1" | sed -n "${3:-1}p"; }
is() { [ "$(number "$1" "$2" "${4:-1}")" = "$3" ] || { echo "$2: $(number "$1" "$2" "${4:-1}"), expected $3"; return 1; }; }

# the meshes that fit have numbers and stand first, the fastest on top; those behind them have words
ranked() { awk 'NR > 2 && $0 !~ /[a-z]/ {n++; if (n > 1 && $5 > last) exit 1; last = $5} END {exit n < 1}' "$1"; }
reasons() { awk 'NR > 2 && $0 ~ /[a-z] / {seen = 1; next} NR > 2 && (seen || NF != 8) {exit 1}' "$1"; }

for machine in h200 gb300; do
    plan=$dir/$machine.json
    check "$machine fits in a second" bash -c "ulimit -t 1; exec $m3 plan configs/m3_full.yaml --machine $machine --json >$plan"
    check "$machine parameters" is "$plan" trained 425950417920
    check "$machine Adam state" is "$plan" adam_state_bytes $((425950417920 * 12))
    check "$machine checkpoint" is "$plan" checkpoint_bytes $((425950417920 * 12 + 2 * $(number "$plan" params)))
    check "$machine stages" test "$(grep -c '"stage":' "$plan")" = 4
    for key in weights rollout_weights gradients activations activations_recompute_none activations_recompute_attention \
               activations_recompute_layer adam kv decoding communication host local_disk; do
        check "$machine has $key" test -n "$(number "$plan" ${key}_bytes 4)"
    done
    for key in tp ep pp dp sync flop; do check "$machine has $key" test -n "$(number "$plan" $key)"; done
    for key in rollout old_logprobs forward_backward reduce adam sync step_s tokens_per_s mfu; do
        check "$machine has the time of $key" test -n "$(number "$plan" $key)"
    done
    check "$machine says what limits" grep -q '^  "limit": "adam, ' "$plan"
done
# a rank of stage 1: 15 layers, 2 bytes a weight, 4 a gradient of what is trained there, a quarter of 15 / 57 of the disks
check "a rank's gradients" within 1e-3 "$(number "$dir/h200.json" gradients_bytes 2)" $((4 * $(number "$dir/h200.json" trained 3)))
check "a rank's weights" within 5e-3 "$(number "$dir/h200.json" weights_bytes 2)" $((2 * $(number "$dir/h200.json" params 3)))
check "a node's disk" within 1e-3 "$(number "$dir/h200.json" node_local_disk_bytes)" $((4 * $(number "$dir/h200.json" local_disk_bytes 4)))

refuses "too small a machine" 2 "it does not fit: stage" "$m3" plan configs/m3_full.yaml adam.spill_dir=
cp "$dir/out" "$dir/small"
check "and what would fit" grep -q 'this would: adam.spill_dir=' "$dir/small"
refuses "an impossible mesh" 2 "mesh.pp=64 stages for num_hidden_layers=60" "$m3" plan configs/m3_full.yaml mesh.pp=64 mesh.tp=4 mesh.ep=8 mesh.dp=2
refuses "an unknown machine" 1 "configs/machines/abacus.yaml" "$m3" plan configs/m3_full.yaml --machine abacus
refuses "no architecture" 2 "--model" "$m3" plan configs/demo_gsm8k.yaml model.checkpoint="$dir/nowhere"
check "another batch" "$m3" plan configs/m3_full.yaml rl.prompts_per_step=64 --sample-tokens 2000
check "the reference model" bash -c "$m3 plan configs/m3_full.yaml ref.report=true | grep -qE '^  ref_logprobs +[0-9]'"

for ranks in 32 512 4096; do
    check "sweep of $ranks" "$m3" plan configs/m3_full.yaml --machine gb300 --sweep --ranks $ranks --json
    "$m3" plan configs/m3_full.yaml --machine gb300 --sweep --ranks $ranks --show 0 >"$dir/sweep" 2>&1
    check "ranked by speed" ranked "$dir/sweep"
    check "no mesh is refused without a reason" reasons "$dir/sweep"
done
check "impossible ones say why" grep -q 'mesh.ep=256 does not divide num_local_experts=128' "$dir/sweep"
"$m3" plan configs/m3_4layer.yaml --sweep --ranks 4 --up-to 16 --show 1 >"$dir/scaling" 2>&1
if command -v gnuplot >/dev/null; then
    check "curves" "$m3" plan configs/m3_4layer.yaml --sweep --ranks 4 --up-to 8 --plot "$dir/scaling.svg"
    check "of both" grep -qF 'weak: the batch grows' "$dir/scaling.svg"
fi
check "strong and weak scaling" grep -qE '^ +16 .*%.*%.*%.*%' "$dir/scaling"

# under mpirun one rank plans for all; the ranks are the job's
check "a job's plan" bash -c "mpirun -n 4 $m3 plan configs/m3_4layer.yaml --json >$dir/job.json"
check "is printed once" test "$(grep -c '^  "ranks": 4,' "$dir/job.json")" = 1
finish
