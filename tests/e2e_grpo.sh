#!/bin/bash
# The demo's GRPO as a test: a warm-up that leaves few right answers, then reward climbs on 4 ranks, with the gates and the
# check of every weight update on. tests/e2e_grpo.sh [SEED...]: one seed in make check, three in make soak.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# mean_reward RUN FIRST LAST: mean of reward_mean over steps FIRST..LAST
mean_reward() { sed -nE 's/^\{"step": ?([0-9]+),.*"reward_mean": ?([^,}]+).*/\1 \2/p' "$dir/$1/metrics.jsonl" |
    awk -v a="$2" -v b="$3" '$1 >= a && $1 <= b {s += $2; n++} END {print (n ? s / n : "none")}'; }
between() { awk -v x="$3" -v a="$1" -v b="$2" 'BEGIN {if (x == "none" || !(x >= a && x <= b)) {print x; exit 1}}'; }

sh jobs/make_arithmetic.sh "$dir/sums" 6
for seed in "${@:-1}"; do
    check "seed $seed: init" "$m3" init configs/tiny_m3/config.json "$dir/init$seed" --seed "$seed"
    check "seed $seed: warm-up" "$m3" train configs/demo_warmup.yaml model.checkpoint="$dir/init$seed" run.dir="$dir/warm$seed" \
        run.seed="$seed" data.train="$dir/sums/train.jsonl"
    check "seed $seed: sampled before" "$m3" train configs/demo_grpo.yaml model.checkpoint="$dir/warm$seed" run.dir="$dir/before$seed" \
        run.seed="$seed" data.train="$dir/sums/train.jsonl" data.eval= eval.every=0 mesh.tp=1 mesh.pp=1 rollout.tp=1 rollout.only=true \
        train.steps=2 train.warmup_steps=0 rl.prompts_per_step=43
    check "seed $seed: few right answers" between 0.1 0.3 "$(mean_reward "before$seed" 1 2)"
    check "seed $seed: GRPO" mpirun -n 4 "$m3" train configs/demo_grpo.yaml model.checkpoint="$dir/warm$seed" run.dir="$dir/grpo$seed" \
        run.seed="$seed" data.train="$dir/sums/train.jsonl" data.eval="$dir/sums/held_out.jsonl" run.threads=1
    check "seed $seed: most are right" between 0.7 1 "$(mean_reward "grpo$seed" 111 120)"
    echo "seed $seed: $(mean_reward "before$seed" 1 2) -> $(mean_reward "grpo$seed" 111 120)"
done
finish
