#!/bin/sh
# The demo: a tiny M3 learns GSM8K's text (SFT), then another one learns sums by trial and error (GRPO on 4 ranks).
set -eu
m3=${BUILD:-build}/m3
dir=runs/demo
# Open MPI: silent as root, and with more ranks than cores
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
say() { printf '\n== %s\n' "$*"; }
mkdir -p $dir
[ -d $dir/init ] || "$m3" init configs/tiny_m3/config.json $dir/init --seed 1
rm -rf $dir/sft $dir/warmup $dir/grpo $dir/sums

say "SFT: GSM8K's text on one rank, about two minutes"
"$m3" train configs/demo_gsm8k.yaml
"$m3" report $dir/sft
echo
echo "A held-out question, greedily:"
"$m3" generate $dir/sft --chat --greedy --max-new 64 --prompt "Tom has 3 bags with 4 apples each. How many apples does Tom have?"

say "RL: sums of two digits; first a warm-up that gets few of them right"
sh jobs/make_arithmetic.sh $dir/sums 6
"$m3" train configs/demo_warmup.yaml
say "GRPO on 4 ranks (tp 2 x pp 2; rollouts tp 2 x dp 2), some three minutes"
mpirun -n 4 "$m3" train configs/demo_grpo.yaml
"$m3" report $dir/grpo
"$m3" report $dir/grpo --panels reward,gap --out $dir/grpo/reward_and_gap.png >/dev/null
cat <<EOF

SFT         checkpoint $dir/sft/checkpoints/ (h5ls, h5dump, h5py open it), curves $dir/sft/report.png
GRPO        curves $dir/grpo/report.png, reward and log-prob gap $dir/grpo/reward_and_gap.png,
            every response with its reward $dir/grpo/rollouts/, gates and weight updates checked at each step
next        $m3 export $dir/sft $dir/release            a release folder for other tools
            mpirun -n 4 $m3 train configs/demo_gsm8k.yaml run.dir=$dir/mesh mesh.tp=2 mesh.ep=2
            $m3 plan configs/m3_full.yaml              whether the real one fits, and how long a step takes
            $m3 train --help
EOF
