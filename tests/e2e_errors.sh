#!/bin/bash
# Broken input through the command line: exit status 1 (a file) or 2 (the configuration), a message that names file and
# reason, nothing half-written in place of a good file, no temporary left.
if [ "$(id -u)" != 0 ] && unshare -Urm true 2>/dev/null; then exec unshare -Urm bash "$0"; fi # where it may mount
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self
from=$golden/narrow/checkpoint
first=model-00001-of-00008.safetensors second=model-00002-of-00008.safetensors
echo '{"input_ids": [1, 2, 3, 4, 5]}' >"$dir/good.jsonl"

# broken FILE EDIT: a copy of the checkpoint, "$bad", with FILE edited by sed
broken() { rm -rf "$bad"; cp -r $from "$bad" && LC_ALL=C sed -i "$2" "$bad/$1"; }
# header FILE EDIT: the same with the JSON header of a safetensors file, whose length may change
header() {
    rm -rf "$bad"; cp -r $from "$bad"
    local file=$bad/$1 n text
    n=$(od -An -N8 -t u8 "$file" | tr -d ' ')
    text=$(tail -c +9 "$file" | head -c "$n" | sed "$2")
    while [ $((${#text} % 8)) != 0 ]; do text+=' '; done
    { le64 ${#text}; printf %s "$text"; tail -c +$((n + 9)) "$file"; } >"$file.new" && mv "$file.new" "$file"
}
le64() { local i; for i in 0 8 16 24 32 40 48 56; do printf "\\x$(printf %02x $(($1 >> i & 255)))"; done; }
# says NAME TEXT: the command before said so
says() { if grep -qF -- "$2" "$dir/out"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "failed: $1: no \"$2\" in:"; cat "$dir/out"; fi; }
# no_file PATTERN...: none of these exists
no_file() { ! ls -d "$@" 2>/dev/null; }
# A refusal of `score` that leaves neither output nor temporary.
score_refuses() {
    refuses "$1" "$2" "$3" "$m3" score "$bad" "${4:-$dir/good.jsonl}" "$dir/out.safetensors" --device cpu
    says "$1: names the file" "${5:-$bad}"
    check "$1: nothing left" no_file "$dir"/out.safetensors*
}
bad=$dir/bad
cp -r $from "$bad"
check "a good copy scores" "$m3" score "$bad" "$dir/good.jsonl" "$dir/good.safetensors" --device cpu

# ---- safetensors ----
cp $from/$first "$bad/" && truncate -s -10 "$bad/$first"
score_refuses "truncated shard" 1 "outside the 157942 bytes of data that the file holds" "" "$bad/$first"
cp $from/$first "$bad/" && printf x >>"$bad/$first"
score_refuses "over-long shard" 1 "1 bytes after the last tensor" "" "$bad/$first"
truncate -s 5 "$bad/$first"
score_refuses "shard without a header" 1 "5 bytes" "" "$bad/$first"
{ le64 99999999; tail -c +9 $from/$first; } >"$bad/$first"
score_refuses "header length beyond the file" 1 "99999999" "" "$bad/$first"
header $first 's/\[66560,133120\]/[66556,133116]/'
score_refuses "overlapping tensors" 1 "overlap" "" "$bad/$first"
header $first 's/\[0,66560\]/[0,66556]/'
score_refuses "size against shape" 1 "66556" "" "$bad/$first"
header $first 's/"F32","shape":\[260,64\],"data_offsets":\[0,/"F99","shape":[260,64],"data_offsets":[0,/'
score_refuses "unknown dtype" 1 "F99" "" "$bad/$first"
header $first 's/language_model.model.embed_tokens.weight/language_model.lm_head.weight/'
score_refuses "a tensor twice" 1 "duplicate" "" "$bad/$first"
header $first 's/{"__metadata__"/{{"__metadata__"/'
score_refuses "header that is no JSON" 1 "line 1" "" "$bad/$first"
header $first 's/"shape":\[260,64\],"data_offsets":\[0,/"shape":[64,260],"data_offsets":[0,/'
score_refuses "transposed tensor" 1 "language_model.lm_head.weight" "" "$bad"
header $first 's/"shape":\[260,64\],"data_offsets":\[0,/"shape":[4611686018427387904,64],"data_offsets":[0,/'
score_refuses "shape that overflows" 1 "language_model.lm_head.weight" "" "$bad/$first"
header $first 's/language_model.lm_head.weight/language_model.lm_tail.weight/'
score_refuses "shard holds another name than the index" 1 "language_model.lm_" ""

# ---- index ----
index=model.safetensors.index.json
broken $index 's/"\(language_model.lm_head.weight\)": *"'$first'"/"\1": "'$second'"/'
score_refuses "index names the wrong shard" 1 "language_model.lm_head.weight" ""
broken $index 's/'$second'/model-00009-of-00008.safetensors/'
score_refuses "index names a missing shard" 1 "model-00009-of-00008.safetensors" ""
broken $index 's/'$second'/..\/'$second'/'
score_refuses "index points outside the folder" 1 "../$second" ""
broken $index '/language_model.lm_head.weight/d'
score_refuses "shard holds what the index does not name" 1 "language_model.lm_head.weight" ""
rm -rf "$bad" && cp -r $from "$bad" && rm "$bad/$second"
score_refuses "shard is missing" 1 "$second" ""
broken $index '5,$d'
score_refuses "index that is no JSON" 1 "line " "" "$bad/$index"
broken $index 's/"weight_map"/"weight_nap"/'
score_refuses "index without a map" 1 "weight_map" "" "$bad/$index"

# ---- config.json ----
broken config.json '20,$d'
score_refuses "config.json is cut" 1 "line " "" "$bad/config.json"
broken config.json 's/"hidden_size": 64/"hidden_size": "64"/'
score_refuses "a size that is text" 1 "hidden_size" "" "$bad/config.json"
broken config.json 's/"hidden_size": 64/"hidden_size": 72/'
score_refuses "a size that the tensors do not have" 1 "72" ""
broken config.json 's/"num_key_value_heads": 4/"num_key_value_heads": 3/'
score_refuses "heads that do not divide" 1 "num_key_value_heads = 3 does not divide num_attention_heads = 8" "" "$bad/config.json"
broken config.json '/"vocab_size"/d'
score_refuses "a size that is missing" 1 "vocab_size" "" "$bad/config.json"
broken config.json 's/"num_hidden_layers": 4/"num_hidden_layers": 1000000000/'
score_refuses "a billion layers" 1 "1000000000" "" "$bad/config.json"
refuses "init from a broken config" 1 "$bad/config.json" "$m3" init "$bad/config.json" "$dir/made" --seed 1
check "init left nothing" no_file "$dir"/made*
refuses "no such checkpoint" 1 "$dir/nowhere" "$m3" score "$dir/nowhere" "$dir/good.jsonl" "$dir/out.safetensors"

# ---- tokenizer.json ----
rm -rf "$bad" && cp -r $from "$bad"
tokenizer_refuses() {
    refuses "$1" "$2" "$bad/tokenizer.json" "$m3" generate "$bad" --prompt hello --max-new 2 --out "$dir/gen.jsonl" --device cpu
    says "$1: the reason" "$3"
    check "$1: nothing left" no_file "$dir"/gen.jsonl*
}
whole=configs/tiny_m3/tokenizer.json
head -c 3000 $whole >"$bad/tokenizer.json"
tokenizer_refuses "cut tokenizer" 1 "line "
: >"$bad/tokenizer.json"
tokenizer_refuses "empty tokenizer" 1 ""
sed 's/"type": *"BPE"/"type":"Unigram"/' $whole >"$bad/tokenizer.json"
tokenizer_refuses "unsupported model" 1 "Unigram"
sed 's/"type": *"ByteLevel"/"type":"Metaspace"/g' $whole >"$bad/tokenizer.json"
tokenizer_refuses "unsupported component" 1 "Metaspace"
rm "$bad/tokenizer.json"
refuses "text without a tokenizer" 2 "no tokenizer.json" "$m3" generate "$bad" --prompt hello --device cpu

# ---- YAML and the command line ----
base="model: {checkpoint: $from}
run: {dir: $dir/run, device: cpu}
train: {steps: 2, global_batch: 1, micro_batch_tokens: 64}
data: {train: $dir/good.jsonl, format: tokens}"
yaml() { printf '%s\n%s\n' "$base" "$1" >"$dir/bad.yaml"; }
yaml_refuses() {
    refuses "$1" 2 "$2" "$m3" train "$dir/bad.yaml"
    says "$1: file and line" "$dir/bad.yaml:$3"
    check "$1: no run folder" no_file "$dir"/run*
}
yaml "adam: {buckit_mb: 3}";               yaml_refuses "unknown key" "adam.bucket_mb" 5
yaml "optimiser: {lr: 1}";                 yaml_refuses "unknown section" "optimiser" 5
yaml "run: {seed: 3}";                     yaml_refuses "duplicate section" "run is given twice, first on line 2" 5
yaml "eval: {every: 1, every: 2}";         yaml_refuses "duplicate key" "eval.every" 5
yaml "eval: {every: many}";                yaml_refuses "ill-typed number" "many" 5
yaml "eval: {every: 1.5}";                 yaml_refuses "fraction for an integer" "1.5" 5
yaml "eval: {every: [1, 2]}";              yaml_refuses "list for a number" "eval.every" 5
yaml "moe: {bias_update_rate: -1}";        yaml_refuses "out of range" "bias_update_rate" 5
yaml "eval: {every: 1";                    yaml_refuses "unclosed brace" "" 6
yaml "$(printf 'eval:\n\tevery: 1')";      yaml_refuses "a tab" "" 6
yaml "eval: &a {every: 1}";                yaml_refuses "an anchor" "anchor" 5
yaml ""
refuses "unknown override" 2 "train.steps" "$m3" train "$dir/bad.yaml" train.step=3
refuses "ill-typed override" 2 "soon" "$m3" train "$dir/bad.yaml" train.steps=soon
refuses "override without a value" 2 "train.steps" "$m3" train "$dir/bad.yaml" train.steps
refuses "missing configuration" 2 "$dir/none.yaml" "$m3" train "$dir/none.yaml"
refuses "unknown option" 2 "--fast" "$m3" score --fast
refuses "missing argument" 2 "TOKENS.jsonl" "$m3" score $from
refuses "unknown command" 2 "trian" "$m3" trian
refuses "two kinds of prompts" 2 "--prompt" "$m3" generate $from --prompt a --tokens "$dir/good.jsonl"
check "no run folder after wrong command lines" no_file "$dir"/run*

# ---- data ----
train_refuses() { refuses "train: $1" "$2" "$3" "$m3" train "$dir/bad.yaml" data.train="$dir/bad.jsonl" "${@:4}"; rm -rf "$dir/run"; }
score_data() { rm -rf "$bad"; cp -r $from "$bad"; score_refuses "score: $1" "$2" "$3" "$dir/bad.jsonl" "$dir/bad.jsonl"; }
generate_refuses() {
    refuses "generate: $1" "$2" "$3" "$m3" generate $from --tokens "$dir/bad.jsonl" --max-new 4 --out "$dir/gen.jsonl" --device cpu "${@:4}"
    check "generate: $1: nothing left" no_file "$dir"/gen.jsonl*
}
for what in train_refuses score_data generate_refuses; do
    : >"$dir/bad.jsonl";                                              $what "empty data" 1 "$dir/bad.jsonl: no "
    printf '\n \n' >"$dir/bad.jsonl";                                 $what "blank data" 1 "2 lines"
    printf '{"input_ids": [1]\n' >"$dir/bad.jsonl";                   $what "no JSON" 1 "$dir/bad.jsonl:1"
    printf '\n[1, 2]\n' >"$dir/bad.jsonl";                            $what "no object" 1 "$dir/bad.jsonl:2"
    printf '{"ids": [1]}\n' >"$dir/bad.jsonl";                        $what "no ids" 1 "input_ids"
    printf '{"input_ids": [1, 2.5]}\n' >"$dir/bad.jsonl";             $what "id that is no integer" 1 "input_ids[1]"
    printf '{"input_ids": [1, -2]}\n' >"$dir/bad.jsonl";              $what "negative id" 1 "input_ids[1] is -2"
    { cat "$dir/good.jsonl"; echo '{"input_ids": [1, 260]}'; } >"$dir/bad.jsonl"
    $what "id beyond the vocabulary" 1 "$dir/bad.jsonl:2: input_ids[1] is 260, not a token id below the vocabulary's 260"
    printf '{"input_ids": [1, 9999999999999999999999]}\n' >"$dir/bad.jsonl"; $what "id beyond 64 bits" 1 "$dir/bad.jsonl:1"
    printf '{"input_ids": [1, 2\0003]}\n' >"$dir/bad.jsonl";           $what "a zero byte" 1 "$dir/bad.jsonl:1"
    rm "$dir/bad.jsonl";                                              $what "no file" 1 "$dir/bad.jsonl: No such file"
done
long() { printf '{"input_ids": [1'; for _ in $(seq 2 "$1"); do printf ',2'; done; echo ']}'; }
long 4097 >"$dir/bad.jsonl"
generate_refuses "prompt longer than the model" 2 "4097 tokens"
score_data "sequence longer than the model" 1 "4097 tokens, the limit is 4096"
train_refuses "only samples that are too long" 1 "1 longer than data.max_tokens=4096"
long 20 >"$dir/bad.jsonl"
generate_refuses "prompt and --max-new beyond the model" 2 "--max-new 4090" --max-new 4090
train_refuses "only samples beyond data.max_tokens" 1 "1 longer than data.max_tokens=10" data.max_tokens=10
echo '{"input_ids": []}' >"$dir/bad.jsonl"
generate_refuses "empty prompt" 1 "$dir/bad.jsonl:1"
score_data "empty sequence" 1 "$dir/bad.jsonl:1: no tokens"
train_refuses "nothing to learn" 1 "with nothing to learn"
echo '{"input_ids": [1, 2], "loss_mask": [1]}' >"$dir/bad.jsonl"
train_refuses "mask of another length" 1 "\"loss_mask\" has 1 entries, \"input_ids\" 2"

# ---- a file beyond the shell's limit ----
refuses "file size limit" 1 "File too large" bash -c 'ulimit -f 8192; exec "$@"' - "$m3" init configs/tiny_m3/config.json "$dir/made" --seed 1
check "file size limit: init left nothing" no_file "$dir"/made*

# ---- a full disk: a small file system, where one may be mounted ----
small=$dir/small
mkdir "$small"
if ! mount -t tmpfs -o size=64k m3test "$small" 2>/dev/null; then
    echo "$passed passed, $failed failed, 1 skipped"
    echo "skipped: full disks (no file system may be mounted)"
    [ $failed = 0 ] || exit 1
    exit
fi
trap 'umount "$small"; rm -rf "$dir"' EXIT
fill() { umount "$small"; mount -t tmpfs -o "size=${1}k" m3test "$small"; } # an empty disk of that many KiB
full() {
    refuses "full disk: $1" 1 "$2" "${@:3}"
    says "full disk: $1: the reason" "${reason:-No space left on device}"
}
fill 600
full "init" "$small/made" "$m3" init $from/config.json "$small/made" --seed 1
check "init left nothing" no_file "$small"/made*
check "a run to export" "$m3" train "$dir/bad.yaml" data.train="$dir/good.jsonl" run.dir="$dir/good_run"
fill 600
full "export" "$small/release" "$m3" export "$dir/good_run" "$small/release"
check "export left nothing" no_file "$small"/release*
fill 16
cp "$dir/good.safetensors" "$small/out.safetensors"
full "score" "$small/out.safetensors" "$m3" score $from "$dir/good.jsonl" "$small/out.safetensors" --grads --device cpu
check "score left the good file" cmp "$dir/good.safetensors" "$small/out.safetensors"
check "score left no temporary" no_file "$small"/*.tmp
for i in $(seq 64); do cat "$dir/good.jsonl"; done >"$dir/many.jsonl"
cp "$dir/good.jsonl" "$small/gen.jsonl"
full "generate" "$small/gen.jsonl" "$m3" generate $from --tokens "$dir/many.jsonl" --max-new 20 --ignore-eos --out "$small/gen.jsonl" --device cpu
check "generate left the good file" cmp "$dir/good.jsonl" "$small/gen.jsonl"
check "generate left no temporary" no_file "$small"/*.tmp
full "standard output" "standard output" bash -c '"$0" "$@" >/dev/full' "$m3" generate $from --tokens "$dir/good.jsonl" --max-new 2 --device cpu
fill 10000
check "a first checkpoint" "$m3" train "$dir/bad.yaml" run.dir="$small/run" checkpoint.every=1 train.steps=1
reason="bytes free"
full "checkpoint" "$small/run/checkpoints/step_0000000" "$m3" train "$dir/bad.yaml" run.dir="$small/run" checkpoint.every=1 train.steps=4
check "a checkpoint is there" "$m3" score "$small/run" "$dir/good.jsonl" "$dir/after.safetensors" --device cpu
check "no torn checkpoint is" no_file "$small"/run/checkpoints/*.tmp
finish
