#!/bin/bash
# Everything on a machine with a GPU: builds with CUDA, then runs the parts named (all of them without names), each with a
# time limit and a log under OUT (default runs/check_gpu), and prints a line a part.
#     ops        every op against its CPU twin                golden   the golden cases through the whole model
#     sanitize   compute-sanitizer over a short form of ops   train    SFT, RL on one rank and on four that share the GPU
#     spill      Adam's state on local disk: the same losses as in memory
#     real       a model of real widths (4 layers, 8 experts, 32000 tokens): training and decoding, time by op
#     bench      times of single ops at real widths
set -u
cd "$(dirname "$0")/.." || exit 1
OUT=${OUT:-runs/check_gpu} BUILD=${BUILD:-build-gpu}
[ $# -gt 0 ] || set -- ops golden train spill sanitize real bench
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
m3=$BUILD/m3 bin=$BUILD/tests
mkdir -p "$OUT"
failed=0

# part NAME SECONDS COMMAND...
part() {
    local name=$1 limit=$2 start=$SECONDS status; shift 2
    timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1; status=$?
    [ $status = 0 ] || failed=1
    printf '%-26s %-8s %4d s  %s\n' "$name" "$([ $status = 0 ] && echo ok || echo "status $status")" $((SECONDS - start)) \
        "$(grep -vE '^(--|\[vm|\[host)' "$OUT/$name.log" | tail -n 1 | cut -c1-150)"
}

part build 400 make -j"$(nproc)" CUDA=1 BUILD="$BUILD" all "$BUILD/tests/cuda_ops" "$BUILD/tests/cuda_bench" "$BUILD/tests/golden_compare"
[ $failed = 0 ] || { tail -n 30 "$OUT/build.log"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

golden() {
    local case dtype ref=tests/data/golden
    for case in narrow wide; do
        "$bin/golden_compare" tokens $ref/$case/reference.safetensors >"$work/tokens.jsonl"
        for dtype in fp32 bf16; do
            part "golden_${case}_$dtype" 120 "$m3" score $ref/$case/checkpoint "$work/tokens.jsonl" "$work/$case.$dtype.st" \
                --logits --selections --grads --device cuda --dtype $dtype
            part "compare_${case}_$dtype" 60 "$bin/golden_compare" ${dtype/fp32/score} $ref/$case/reference.safetensors "$work/$case.$dtype.st"
        done
    done
}

train() {
    "$m3" init configs/tiny_m3/config.json "$work/init" --seed 1 >/dev/null 2>&1
    part sft 120 "$m3" train configs/demo_gsm8k.yaml model.checkpoint="$work/init" run.dir="$work/sft" run.device=cuda train.steps=30 \
        eval.every=0 data.eval=
    sh jobs/make_arithmetic.sh "$work/sums" 6
    part warmup 60 "$m3" train configs/demo_warmup.yaml model.checkpoint="$work/init" run.dir="$work/warmup" run.device=cuda \
        data.train="$work/sums/train.jsonl"
    local rl="configs/demo_grpo.yaml model.checkpoint=$work/warmup run.device=cuda data.train=$work/sums/train.jsonl
              data.eval=$work/sums/held_out.jsonl eval.every=0 gates.logprob_abs_diff=0.005 gates.mean_logprob_diff=0.005"
    part grpo_1 150 "$m3" train $rl run.dir="$work/grpo1" mesh.tp=1 mesh.pp=1 rollout.tp=1
    part grpo_4 200 mpirun -n 4 "$m3" train $rl run.dir="$work/grpo4" train.steps=20
    for r in grpo1 grpo4; do cp "$work/$r/metrics.jsonl" "$OUT/$r.jsonl"; done
    "$m3" generate "$work/grpo1" --device cuda --chat --greedy --max-new 8 --prompt "3+4=" >"$OUT/generate.log" 2>&1
}

spill() {
    local out
    for out in memory disk; do
        part spill_$out 120 "$m3" train configs/demo_gsm8k.yaml model.checkpoint="$work/init" run.dir="$work/spill_$out" run.device=cuda \
            train.steps=24 eval.every=0 data.eval= adam.spill_dir="$([ $out = memory ] || echo "$work/disk")"
        sed -E 's/.*"loss": ?([^,]+),"grad_norm": ?([^,]+),.*/\1 \2/' "$work/spill_$out/metrics.jsonl" >"$work/spill_$out.txt"
    done
    part spill_equal 10 cmp "$work/spill_memory.txt" "$work/spill_disk.txt"
}

# tokens SAMPLES LENGTH: random ids
tokens() {
    awk -v n="$1" -v t="$2" 'BEGIN { srand(1); for (i = 0; i < n; i++) { printf "{\"input_ids\":["
        for (j = 0; j < t; j++) printf "%s%d", j ? "," : "", int(32000 * rand()); print "]}" } }'
}

real() {
    local t batch new
    sed -E 's/("vocab_size": )[0-9]+/\132000/; s/("num_local_experts": )[0-9]+/\18/' configs/m3_4layer.json >"$work/real.json"
    part real_init 60 "$m3" init "$work/real.json" "$work/real" --dtype bf16
    echo 'train: {lr: 1e-6}' >"$work/real.yaml"
    for t in ${LENGTHS:-4096 16384}; do
        tokens 8 "$t" >"$work/tokens.jsonl"
        # killed when its time is up: at its own end it would write a checkpoint of 32 GB
        timeout -s KILL 25 "$m3" train "$work/real.yaml" model.checkpoint="$work/real" run.dir="$work/real_$t" run.device=cuda \
            data.train="$work/tokens.jsonl" data.format=tokens data.max_tokens="$t" train.steps=100000 train.global_batch=1 \
            train.micro_batch_tokens="$t" checkpoint.every=0 run.profile=2 >"$OUT/real_train_$t.log" 2>&1
        [ -s "$work/real_$t/metrics.jsonl" ] || failed=1
        echo "real_train_$t  $(grep -oE '"(step|tokens_per_s|time_[a-z_]*)":[0-9.e+-]*' "$work/real_$t/metrics.jsonl" | tail -n 6 | tr '\n' ' ')"
        cp "$work/real_$t/profile/ops.rank0000.txt" "$OUT/real_train_$t.ops.txt" && head -n 12 "$OUT/real_train_$t.ops.txt"
        rm -rf "$work/real_$t"
    done
    for batch in 1 16 64; do
        tokens $batch 512 >"$work/prompts.jsonl"
        for new in 64 320; do # the difference of the two times is 256 steps in the steady state
            part real_decode_${batch}_$new 60 "$m3" generate "$work/real" --tokens "$work/prompts.jsonl" --greedy --ignore-eos \
                --max-new $new --batch $batch --device cuda --profile --out "$work/o.jsonl"
            grep 'new tokens' "$OUT/real_decode_${batch}_$new.log"
        done
    done
}

for what; do
    case $what in
    ops) part ops 300 "$bin/cuda_ops" ;;
    golden) golden ;;
    train) train ;;
    spill) [ -d "$work/init" ] || "$m3" init configs/tiny_m3/config.json "$work/init" --seed 1 >/dev/null 2>&1; spill ;;
    real) real ;;
    sanitize) for tool in memcheck racecheck; do part $tool 280 compute-sanitizer --tool $tool --error-exitcode 9 "$bin/cuda_ops" --short; done ;;
    bench) part bench 300 "$bin/cuda_bench" ;;
    *) echo "no part $what" >&2; exit 2 ;;
    esac
done
exit $failed
