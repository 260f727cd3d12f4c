#!/bin/bash
# jobs/m3_full.slurm itself on a real Slurm: eight nodes of four tasks on this machine (tests/slurm_local.sh), 32 ranks, with a
# tiny model given on the command line. Skipped where Slurm cannot be had: no root, no namespaces, no packages.
. tests/lib.sh
slurm=$(mktemp -d /tmp/m3s.XXXXXX) || exit 1 # short: sockets live there
trap 'bash tests/slurm_local.sh stop "$slurm"; rm -rf "$dir"' EXIT
bash tests/slurm_local.sh start "$slurm" >"$dir/start" 2>&1; status=$?
if [ $status = 77 ]; then cat "$dir/start"; echo "0 passed, 0 failed, 39 skipped"; exit 0; fi
if [ $status != 0 ]; then cat "$dir/start"; echo "0 passed, 1 failed"; exit 1; fi
. "$slurm/env"
# All nodes are this machine: its loopback joins them, and waiting ranks let others run.
unset OMPI_MCA_btl
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_mpi_yield_when_idle=1 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export M3=$m3 MACHINE=cpu NEED_GPUS=0 LOCAL_DIR=$dir/local RUN_DIR
for i in $(seq 0 31); do
    printf '{"input_ids": [%d, %d, %d, %d, %d], "label": "%d"}\n' $((i * 3)) $((i * 7 % 250)) $((i * 13 % 250)) $((i * 29 % 250)) 7 "$i"
done >"$dir/prompts.jsonl"
tiny=(model.checkpoint=$golden/narrow/checkpoint run.device=cpu run.dtype=fp32 run.threads=1 rollout.ep=8 adam.bucket_mb=1
      data.train="$dir/prompts.jsonl" data.eval="$dir/prompts.jsonl" data.format=tokens data.max_tokens=8 reward.kind=pseudo_random
      train.steps=4 train.warmup_steps=2 train.lr=1e-3 train.micro_batch_tokens=64 rl.prompts_per_step=4 eval.samples=4 eval.every=3
      rollout.samples_per_prompt=4 rollout.max_new_tokens=8 rollout.max_batch=4 checkpoint.every=2 comm.timeout_s=120)
long=(train.steps=100000 eval.every=0 checkpoint.every=0)

# until SECONDS COMMAND...: looks again and again
until_() {
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || return 1; sleep 0.2; done
}
state() { scontrol show job "$job" | sed -nE 's/.*JobState=([A-Z]+).*/\1/p'; }
exit_code() { scontrol show job "$job" | sed -nE 's/.*ExitCode=([0-9]+):.*/\1/p'; }
ended() { case $(state) in COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL) return 0 ;; *) return 1 ;; esac; }
trains() { grep -qs 'memory of rank 0' "$RUN_DIR/log.txt"; }
says() { grep -qF -- "$1" "$out"; }
steps() { [ "$(sed -nE 's/^\{"step": ?([0-9]+).*/\1/p' "$RUN_DIR/metrics.jsonl" | tail -n 1)" -ge "$1" ]; }
started() { trains || ended; }
numbers() { sed -nE 's/.*"step": ?([0-9]+),.*"grad_norm": ?([^,]+),.*"reward_mean": ?([^,]+),.*/\1 \2 \3/p' "$1/metrics.jsonl"; }
# near RUN OTHER STEPS: the same responses and gradients in the first steps
near() { paste <(numbers "$1") <(numbers "$2") | awk -v n="$3" 'NF < 6 {exit} {d = $2 - $5; if (d < 0) d = -d; r = $3 - $6; if (r < 0) r = -r
                 if ($1 != $4 || d > 1e-4 * $5 || r > 1e-9) {print; exit} k++} END {exit k != n}'; }

# submit NAME [sbatch options] -- [key=value ...]: sets job, out and RUN_DIR; returns when it trains or has ended. A job
# that crashes inside MPI_Init (seen on busy cores, without SLURM_PMIX_FENCE=ring) is submitted again.
submit() {
    local name=$1 options=() try; shift
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    RUN_DIR=$dir/$name out=$dir/$name.out
    for try in 1 2 3; do
        rm -rf "$out"
        job=$(sbatch --parsable --output="$out" "${options[@]}" "jobs/${JOB:-m3_full}.slurm" "${tiny[@]}" "$@") || return 1
        until_ 300 started || return 1
        trains && return 0
        grep -q 'Signal: Segmentation fault' "$out" || return 0
        echo "job $job: MPI_Init crashed, submitted again ($try)"
    done
}
# check_job NAME COMMAND...: as check, and shows the job's output when it fails
check_job() {
    local before=$failed
    check "$@"
    [ $failed = $before ] || { scontrol show job "$job" | head -n 4; tail -n 30 "$out"; }
}
is() { [ "$($1)" = "$2" ] || { echo "$1: $($1), expected $2"; return 1; }; }

# ---- a run to its end, as one rank would do it
check "one rank" "$m3" train configs/m3_full.yaml "${tiny[@]}" run.dir="$dir/one" mesh.tp=1 mesh.pp=1 mesh.ep=1 mesh.dp=1 \
    adam.spill_dir= rollout.tp=1 rollout.ep=1
submit whole --
until_ 300 ended
check_job "the job completes" is state COMPLETED
check_job "with status 0" is exit_code 0
check_job "on 32 ranks" grep -q 'mesh: tp 4, pp 4, ep 8, dp 2 on 32 ranks' "$out"
check_job "four on each of eight nodes" test "$(grep -cE ' [0-9]+ node[1-8] +[0-3] ' "$out")" = 32
check_job "a log a rank" test -s "$RUN_DIR/log.rank0031.txt"
check_job "the numbers of one rank" near "$dir/one" "$RUN_DIR" 4
check_job "memory as planned" grep -q 'every rank within [0-2]\.[0-9]% of its plan' "$RUN_DIR/log.txt"

# ---- requeued by hand in the middle: it resumes and the numbers are the same
submit requeued --
until_ 300 steps 2
scontrol requeue "$job"
until_ 300 says 'restart 1'
until_ 300 ended
check_job "the requeued job completes" is state COMPLETED
check_job "it resumed" says 'resuming from'
check_job "with the numbers of the whole run" near "$dir/whole" "$RUN_DIR" 4

# ---- the time limit: a signal ahead of it, a checkpoint, requeued by itself; then the stop file ends it with status 75
submit limit --time=2 --signal=B:USR1@85 -- "${long[@]}"
until_ 300 says 'stopped with a checkpoint: requeued'
check_job "the time limit ends in a checkpoint" grep -q 'stopped at step .* of 100000 with a checkpoint' "$out"
until_ 300 says 'resuming from'
check_job "and the job goes on by itself" says 'restart 1: 32 tasks'
touch "$RUN_DIR/stop"
until_ 300 ended
check_job "the stop file ends it with status 75" is exit_code 75
check_job "and it is not requeued" says 'remove it and submit again'

# ---- a chain where requeueing is not allowed: a signal ends the first, the second goes on from its checkpoint; it is cancelled
export REQUEUE=0
submit chain -- "${long[@]}"
until_ 300 steps 1
first=$job
job=$(sbatch --parsable --dependency=singleton --output="$dir/second.out" jobs/m3_full.slurm "${tiny[@]}" "${long[@]}")
check_job "the second job waits" is state PENDING
scancel --batch --signal=USR1 "$first"
out=$dir/second.out
until_ 300 says 'resuming from'
check_job "the second job goes on" says 'resuming from'
check_job "after the first" grep -qF 'the next job goes on' "$dir/chain.out"
check_job "which ended with status 75" test "$(scontrol show job "$first" | grep -c 'ExitCode=75:0')" = 1
unset REQUEUE
trains_again() { [ "$(grep -c 'rollout: tp' "$RUN_DIR/log.txt")" -ge 2 ]; }
until_ 300 trains_again
scancel "$job"
until_ 300 ended
check_job "a cancelled job is cancelled" is state CANCELLED
check_job "with a checkpoint" test -n "$(ls "$RUN_DIR/checkpoints")"

# ---- one task of node 5 dies
task() {
    local p
    for p in /proc/[0-9]*; do
        [[ "$(tr '\0' ' ' 2>/dev/null <"$p/cmdline")" == "$m3 train "* ]] && tr '\0' '\n' 2>/dev/null <"$p/environ" |
            grep -cxE "SLURM_JOB_ID=$job|SLURM_PROCID=$1" | grep -qx 2 && echo "${p#/proc/}"
    done 2>/dev/null
}
submit killed -- "${long[@]}"
until_ 300 steps 1
kill -9 "$(task 17)"
until_ 300 ended
check_job "a killed task fails the job" is state FAILED
check_job "it says so" says 'not requeued'
check_job "the task is named" grep -q 'node5: task 17: Killed' "$out"
check_job "no task is left" test -z "$(task '[0-9]+')"

# ---- a gate
submit gate -- gates.logprob_abs_diff=1e-30
until_ 300 ended
check_job "a failed gate ends the job with status 3" is exit_code 3
check_job "and its name" says 'train_rollout_logprob_abs_diff'

# ---- mpirun inside the allocation
LAUNCHER=mpirun submit mpirun -- train.steps=2
until_ 300 ended
check_job "mpirun does the same" near "$dir/whole" "$RUN_DIR" 2

# ---- the job of one node
LOCAL_DIR= JOB=m3_4layer submit four -- mesh.tp=4 rollout.ep=4 train.steps=2 eval.every=0 gates.logprob_abs_diff=unset
until_ 300 ended
check_job "the 4-layer job completes" is state COMPLETED
check_job "on one node" grep -q 'mesh: tp 4, pp 1, ep 4, dp 1 on 4 ranks' "$out"

# ---- a conversion: two layers of a quantised release
out=$dir/convert.out
job=$(SRC=$golden/narrow_mxfp8/checkpoint DST=$dir/converted LAYERS=0,2 sbatch --parsable --output="$out" jobs/m3_convert.slurm)
until_ 300 ended
check_job "the conversion completes" is state COMPLETED
check_job "as a release" test -s "$dir/converted/config.json" -a -s "$dir/converted/model.safetensors.index.json"

# ---- refused before the launch
printf '#!/bin/sh\n[ "$SLURM_PROCID" = 0 ] && printf "  \\"ranks\\": 1,\\n  \\"node_local_disk_bytes\\": 0,\\n"\n' >"$dir/alone"
chmod +x "$dir/alone"
M3=$dir/alone submit alone --
until_ 300 ended
check_job "another MPI is told" says 'MPI sees 1 ranks, Slurm has 32 tasks'
submit mesh -- mesh.tp=3
until_ 300 ended
check_job "a wrong mesh ends with status 2" is exit_code 2
check_job "and its own words" grep -qF 'mesh.ep=8 does not divide mesh.tp=3' "$out"
NEED_GPUS=4 LOCAL_DIR=/proc/m3 submit nodes --
until_ 300 ended
check_job "missing GPUs are told" says '0 GPUs answer, 4 are needed'
check_job "a bad local disk is told" says '/proc/m3 cannot be made or written'
refuses "a disk too small" 1 "GB are needed" jobs/check_node.sh "$dir/local" 1000000000000000 0
refuses "tasks without PMIx" 2 "srun --mpi=pmix" srun -N 2 --ntasks-per-node=4 --mpi=none "$m3" plan configs/m3_full.yaml
finish
