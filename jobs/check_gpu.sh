#!/bin/bash
# Everything on a machine with a GPU: builds with CUDA, then runs the parts named (all of them without names), each with a
# time limit and a log under OUT (default runs/check_gpu), and prints a line a part.
#     ops        every op against its CPU twin                golden   the golden cases through the whole model
#     sanitize   compute-sanitizer over a short form of ops   train    SFT, RL on one rank and on four that share the GPU
#     bench      times at real widths
set -u
cd "$(dirname "$0")/.." || exit 1
OUT=${OUT:-runs/check_gpu} BUILD=${BUILD:-build-gpu}
[ $# -gt 0 ] || set -- ops golden train sanitize bench
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

for what; do
    case $what in
    ops) part ops 300 "$bin/cuda_ops" ;;
    golden) golden ;;
    train) train ;;
    sanitize) for tool in memcheck racecheck; do part $tool 280 compute-sanitizer --tool $tool --error-exitcode 9 "$bin/cuda_ops" --short; done ;;
    bench) part bench 300 "$bin/cuda_bench" ;;
    *) echo "no part $what" >&2; exit 2 ;;
    esac
done
exit $failed
