#!/bin/bash
# m3 generate: one token at a time gives the log-probs of scoring the whole; many prompts at once equal each alone; stop
# tokens, top-k, top-p, few KV pages, output forms.
. tests/lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for i in 1 2 3 4 5 6 7 8 9; do # prompts of 1 to 82 tokens, two of them equal
    printf '{"input_ids": ['; for t in $(seq 1 $((1 + (i * i - 1) % 83))); do printf '%s%d' "$([ "$t" = 1 ] || echo ,)" $(((i % 8 * 41 + t * t * 7) % 250)); done; echo ']}'
done >"$dir/prompts.jsonl"
for case in narrow wide; do
    from=$golden/$case/checkpoint
    generate() { check "$case: generate $1" "$m3" generate $from --tokens "$dir/prompts.jsonl" --out "$dir/$1.jsonl" --device cpu --max-new 30 "${@:2}"; }
    same() { compare "$case: $2 equals $1" "$bin/decode_compare" same "$dir/$2.jsonl" "$dir/$1.jsonl" 1e-5; }
    # filtered K P NAME: of what it may not take, nothing was taken
    filtered() {
        "$bin/decode_compare" tokens "$dir/$3.jsonl" >"$dir/whole.jsonl"
        check "$case: score $3" "$m3" score $from "$dir/whole.jsonl" "$dir/whole.safetensors" --logits --device cpu
        compare "$case: filter $3" "$bin/decode_compare" filter "$dir/$3.jsonl" "$dir/whole.safetensors" "$1" "$2"
    }
    generate greedy --greedy --ignore-eos
    filtered 1 1 greedy
    compare "$case: decoding against scoring" "$bin/decode_compare" score "$dir/greedy.jsonl" "$dir/whole.safetensors" 2e-5
    generate sampled --ignore-eos --seed 7
    filtered 0 1 sampled
    compare "$case: sampling against scoring" "$bin/decode_compare" score "$dir/sampled.jsonl" "$dir/whole.safetensors" 2e-5
    for batch in 1 2 4; do generate batch$batch --ignore-eos --seed 7 --batch $batch; same sampled batch$batch; done
    # 7 pages of 16 tokens hold the longest sequence: the others wait for each other
    generate pages --ignore-eos --seed 7 --pages 7
    same sampled pages
    refuses "$case: too few pages" 2 "one sequence of 111 needs 7" "$m3" generate $from --tokens "$dir/prompts.jsonl" --max-new 30 --pages 2 --device cpu
    generate topk --ignore-eos --seed 7 --top-k 3
    filtered 3 1 topk
    generate topp --ignore-eos --seed 7 --top-p 0.3
    filtered 0 0.3001 topp
    generate both --ignore-eos --seed 7 --top-k 5 --top-p 0.3
    filtered 5 0.3001 both
    generate one --ignore-eos --top-k 1; same greedy one
    generate cold --ignore-eos --temperature 0; same greedy cold
    generate narrowest --ignore-eos --top-p 1e-9; same greedy narrowest
    generate other --ignore-eos --seed 8
    check "$case: another seed draws other tokens" bash -c '! cmp -s "$1" "$2"' - "$dir/sampled.jsonl" "$dir/other.jsonl"

    # the fifth greedy token of the first prompt as the end token: it ends a sequence and stays in it
    eos=$(sed -nE '1s/.*"ids":\[([0-9]+,){4}([0-9]+).*/\2/p' "$dir/greedy.jsonl")
    cp -r $from "$dir/eos_$case" && sed -i -E 's/"eos_token_id": *[0-9]+/"eos_token_id": '"$eos"'/' "$dir/eos_$case/config.json"
    check "$case: stop" "$m3" generate "$dir/eos_$case" --tokens "$dir/prompts.jsonl" --greedy --max-new 30 --out "$dir/stop.jsonl" --device cpu
    while read -r whole && read -r cut <&3; do
        ids=$(sed -E 's/.*"ids":\[([^]]*)\].*/\1,/' <<<"$whole") want= finish=length
        for id in ${ids//,/ }; do want+=$id,; [ "$id" = "$eos" ] && { finish=stop; break; }; done
        check "$case: cut at the end token" grep -qF "\"ids\":[${want%,}],"  <<<"$cut"
        check "$case: finish" grep -qF "\"finish\":\"$finish\"" <<<"$cut"
    done <"$dir/greedy.jsonl" 3<"$dir/stop.jsonl"
    check "$case: something stopped" grep -q '"finish":"stop"' "$dir/stop.jsonl"
done

# text in and out, to a file and to standard output
check "init with a tokenizer" "$m3" init configs/tiny_m3/config.json "$dir/tiny" --seed 1
check "text to a file" "$m3" generate "$dir/tiny" --prompt "How many?" --greedy --max-new 4 --out "$dir/text.jsonl" --device cpu
check "text to standard output" bash -c '"$1" generate "$2" --prompt "How many?" --greedy --max-new 4 --device cpu 2>/dev/null | cmp - "$3"' - "$m3" "$dir/tiny" "$dir/text.jsonl"
echo '{"prompt": "How many?"}' >"$dir/prompt.jsonl"
check "text from a file" "$m3" generate "$dir/tiny" --prompts "$dir/prompt.jsonl" --greedy --max-new 4 --out "$dir/text2.jsonl" --device cpu
check "the same answer" cmp "$dir/text.jsonl" "$dir/text2.jsonl"
check "text is there" grep -qE '"text":"' "$dir/text.jsonl"
finish
