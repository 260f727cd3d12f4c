#!/bin/sh
# The demo: create a tiny M3, train it on GSM8K, show the curve and a sample of what it writes.
set -eu
m3=${BUILD:-build}/m3
dir=runs/demo
mkdir -p runs
if [ ! -d $dir/init ]; then
    mkdir -p $dir
    "$m3" init configs/tiny_m3/config.json $dir/init --seed 1
fi
rm -rf $dir/sft
"$m3" train configs/demo_gsm8k.yaml
"$m3" report $dir/sft
echo
echo "A held-out question, greedily:"
"$m3" generate $dir/sft --chat --greedy --max-new 64 --prompt "Tom has 3 bags with 4 apples each. How many apples does Tom have?"
cat <<EOF

checkpoint  $dir/sft/checkpoints/ (h5ls, h5dump, h5py open it)
curve       $dir/sft/report.png      numbers  $dir/sft/metrics.jsonl
next        $m3 export $dir/sft $dir/release            a release folder for other tools
            mpirun -n 4 $m3 train configs/demo_gsm8k.yaml run.dir=$dir/mesh mesh.tp=2 mesh.ep=2
            $m3 train --help
EOF
