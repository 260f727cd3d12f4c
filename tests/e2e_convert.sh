#!/bin/bash
# Releases in and out through the command line: decoding bit for bit, cut layers, resuming, several ranks, refusals; quantised
# releases loaded directly; the identity of convert, train and export; inspect on each kind of thing.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
says() { local name=$1 text=$2; shift 2; "$@" >"$dir/out" 2>&1; if grep -qF -- "$text" "$dir/out"; then passed=$((passed + 1))
         else failed=$((failed + 1)); echo "failed: $name: no \"$text\""; tail -n 20 "$dir/out"; fi; }
printf '{"input_ids": [%s]}\n' 1,5,9,200,31,7,7,12,99,140,3,17,77,250,2,41,8,66 1,90,14,23 >"$dir/tokens.jsonl"
cat >"$dir/zero.yaml" <<Y
run: {device: cpu}
train: {steps: 0, global_batch: 1}
data: {train: $dir/tokens.jsonl, format: tokens}
Y

for q in narrow_mxfp8 narrow_nvfp4_ct narrow_nvfp4_mixed; do
    check "$q" "$m3" convert $golden/$q/checkpoint "$dir/$q" --verify
    check "$q is the golden BF16" "$m3" inspect "$dir/$q" --json
    for f in "$dir/$q"/*.safetensors; do check "$q bit for bit" "$bin/st_compare" $golden/$q/expected_bf16.safetensors "$f"; done
    check "$q on 3 ranks" mpirun -n 3 "$m3" convert $golden/$q/checkpoint "$dir/${q}_3" --shard-size 100KB
    check "$q on 3 ranks is the same" "$m3" inspect "$dir/$q" --diff "$dir/${q}_3"
    check "$q scored directly" "$m3" score $golden/$q/checkpoint "$dir/tokens.jsonl" "$dir/direct.safetensors" --logits --device cpu
    check "$q scored after conversion" "$m3" score "$dir/$q" "$dir/tokens.jsonl" "$dir/after.safetensors" --logits --device cpu
    check "$q: both the same, bit for bit" cmp "$dir/direct.safetensors" "$dir/after.safetensors"
    check "$q trained directly" "$m3" train "$dir/zero.yaml" model.checkpoint=$golden/$q/checkpoint run.dir="$dir/run_$q" train.steps=1
done

for case in narrow wide; do
    check "$case to BF16" "$m3" convert $golden/$case/checkpoint "$dir/$case"
    for n in 1 4; do
        mesh=$([ $n = 4 ] && echo "mesh.tp=2 mesh.pp=2")
        check "$case, zero steps on $n ranks" mpirun -n $n "$m3" train "$dir/zero.yaml" model.checkpoint="$dir/$case" \
            run.dir="$dir/zero_$case$n" run.dtype=bf16 $mesh
        check "$case, exported from $n ranks" "$m3" export "$dir/zero_$case$n" "$dir/back_$case$n"
        compare "$case on $n ranks is the identity" "$bin/st_same" "$dir/$case" "$dir/back_$case$n"
        check "config.json key by key" cmp "$dir/$case/config.json" "$dir/back_$case$n/config.json"
        check "side files" cmp "$dir/$case/generation_config.json" "$dir/back_$case$n/generation_config.json"
    done
done

check "cut layers" "$m3" convert $golden/narrow/checkpoint "$dir/cut" --layers 0,1,3 --dtype keep
says "three layers are left" "3 layers: 1 with experts, 1 with block-sparse attention" "$m3" inspect "$dir/cut"
check "the cut one decodes" "$m3" generate "$dir/cut" --tokens "$dir/tokens.jsonl" --greedy --max-new 3 --device cpu
check "a plain copy" "$m3" convert $golden/wide/checkpoint "$dir/copy" --dtype keep --shard-size 50KB
check "equals its source" "$m3" inspect "$dir/copy" --diff $golden/wide/checkpoint
refuses "an existing destination" 1 "exists" "$m3" convert $golden/wide/checkpoint "$dir/copy"
refuses "layers out of order" 2 "layers" "$m3" convert $golden/wide/checkpoint "$dir/no" --layers 3,1
refuses "a layer that is not there" 2 "99" "$m3" convert $golden/wide/checkpoint "$dir/no" --layers 0,99
refuses "no size" 2 "--shard-size" "$m3" convert $golden/wide/checkpoint "$dir/no" --shard-size big
refuses "no number" 2 "--layers" "$m3" convert $golden/wide/checkpoint "$dir/no" --layers 0,x
check "nothing is left of what was refused" test ! -e "$dir/no" -a ! -e "$dir/no.tmp"

says "a release" "missing: 0; unknown: 0" "$m3" inspect $golden/wide/checkpoint
says "statistics" "nan 0" "$m3" inspect $golden/wide/checkpoint --stats
says "a mesh" "KV heads" "$m3" inspect $golden/wide/checkpoint --mesh 2,2,2,1
says "a safetensors file" "safetensors, " "$m3" inspect $golden/wide/reference.safetensors
says "a run folder" "verified" "$m3" inspect "$dir/zero_narrow1" --verify
says "bf16 datasets" "BF16" "$m3" inspect "$dir/zero_narrow1"
check "h5dump shows bf16 as numbers" sh -c "h5dump -d /model/language_model.model.norm.weight '$dir'/zero_narrow1/checkpoints/step_00000000/model.h5 | grep -q '(0): *-*[0-9.]'"
check "one mesh's checkpoint equals another's" "$m3" inspect "$dir/zero_narrow1" --diff "$dir/zero_narrow4"
refuses "two that differ" 3 "differ" "$m3" inspect "$dir/narrow_mxfp8" --diff "$dir/narrow"
cp -r "$dir/zero_narrow1/checkpoints/step_00000000" "$dir/flipped"
size=$(stat -c %s "$dir/flipped/model.h5")
printf '\x5a' | dd of="$dir/flipped/model.h5" bs=1 seek=$((size / 2)) conv=notrunc status=none
refuses "a flipped byte" 1 "/model/language_model" "$m3" inspect "$dir/flipped" --verify
says "JSON" '"kind": "release"' "$m3" inspect "$dir/cut" --json --stats
finish
