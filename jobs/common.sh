#!/bin/bash
# What the Slurm jobs share. A job script sets its variables, sources this, and ends with one line:
#
#     prepare                 finds the program and the launcher
#     check_plan CONFIG ...   starts all ranks once: mesh, MPI size and memory must fit; sets plan_ranks and plan_disk
#     check_nodes             GPUs, and the local disk of every node
#     requeue srun ... "$M3" train ...
#
# Exit statuses of `m3 train`, and what becomes of the job:
#     0  done                                      the job ends, COMPLETED
#     75 stopped at a safe point with a checkpoint: the time limit came near, or a signal. The job is requeued and goes
#        on by itself; not when run.dir/stop asked for the end, or the job was cancelled
#     3  a gate of the configuration failed        the job ends, FAILED
#     2  usage or configuration                    the job ends, FAILED
#     1  or a signal's status: a failure           the job ends, FAILED; submit again to go on from the newest checkpoint
# A node that dies is Slurm's own case: #SBATCH --requeue starts the job again, and it resumes.

say() { echo "[$(date +%T)] $*"; }
die() { local status=$1; shift; say "$*" >&2; exit "$status"; }

prepare() {
    [ -n "${SLURM_JOB_ID:-}" ] || die 2 "this is a Slurm job: submit it with sbatch from the project's folder"
    M3=${M3:-build/m3}
    [ -x "$M3" ] || die 2 "$M3 is not there: run make on a node like these, or set M3"
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
    export M3_HOME=$PWD
    local per_node=${SLURM_NTASKS_PER_NODE:-1}
    case ${LAUNCHER:-srun} in
    srun)
        srun --mpi=list 2>&1 | grep -q pmix || die 2 "this Slurm has no PMIx (srun --mpi=list): set LAUNCHER=mpirun"
        launch=(srun --mpi=pmix --kill-on-bad-exit=1 --cpu-bind=none --gpu-bind=none --label) ;;
    mpirun)
        command -v mpirun >/dev/null || die 2 "LAUNCHER=mpirun, but there is no mpirun on PATH"
        launch=(mpirun -n "$SLURM_NTASKS" --map-by "ppr:${per_node%%(*}:node" --bind-to none) ;;
    *) die 2 "LAUNCHER=$LAUNCHER is neither srun nor mpirun" ;;
    esac
    launch+=(jobs/bind.sh) # each task on the cores beside its GPU
    say "job $SLURM_JOB_ID${SLURM_RESTART_COUNT:+, restart $SLURM_RESTART_COUNT}: $SLURM_NTASKS tasks on $SLURM_JOB_NODELIST"
}

# The number of a top-level key of `m3 plan --json`.
plan_number() { sed -nE "s/^  \"$1\": ([0-9]+),?\$/\1/p" <<<"$plan"; }

# check_plan CONFIG [key=value ...]: all ranks are started as for the run. FORCE=1 goes on where the plan says it does not fit.
check_plan() {
    local status errors
    errors=$(mktemp) || die 1 "no room for temporary files"
    plan=$("${launch[@]}" "$M3" plan "$@" --json ${MACHINE:+--machine "$MACHINE"} 2>"$errors" | sed 's/^ *0: //') # srun's label
    status=${PIPESTATUS[0]}
    plan_ranks=$(plan_number ranks) plan_disk=$(plan_number node_local_disk_bytes)
    if [ -z "$plan_ranks" ] || [ -z "$plan_disk" ]; then
        cat "$errors" >&2
        rm -f "$errors"
        die 2 "m3 plan failed: nothing was started"
    fi
    [ "$plan_ranks" = "$SLURM_NTASKS" ] ||
        die 2 "MPI sees $plan_ranks ranks, Slurm has $SLURM_NTASKS tasks: is the program built with the MPI of this launcher?"
    if ! grep -q '^  "fits": true' <<<"$plan"; then
        grep -E '^  "(why|instead)"' <<<"$plan" >&2
        [ "${FORCE:-0}" = 1 ] || { rm -f "$errors"; die 2 "it does not fit: nothing was started (FORCE=1 goes on)"; }
    fi
    rm -f "$errors"
    say "plan: $plan_ranks ranks, $((plan_disk / 1000000000)) GB of local disk a node, limited by $(sed -nE 's/^  "limit": "(.*)",?$/\1/p' <<<"$plan")"
}

# One task a node looks at its GPUs and at LOCAL_DIR ("": no local disk is needed).
check_nodes() {
    local need=0
    [ -z "${LOCAL_DIR:-}" ] || need=${plan_disk:-0}
    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none --cpu-bind=none --overlap \
        jobs/check_node.sh "${LOCAL_DIR:-}" "$need" "${NEED_GPUS:-0}" || die 2 "a node is not as it must be: nothing was started"
}

# requeue COMMAND...: runs it, passes signals on, and starts the job again when it stopped with a checkpoint. SLURM sends
# USR1 ahead of the time limit (#SBATCH --signal=B:USR1@seconds) and TERM when the job is cancelled or over its limit.
requeue() {
    local status child warned=0 cancelled=0
    if [ -e "$RUN_DIR/stop" ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
        say "$RUN_DIR/stop is left from an earlier stop: removed"
        rm -f "$RUN_DIR/stop"
    fi
    trap 'warned=1; say "the time limit is near: stopping at the next safe point"; kill -USR1 "$child" 2>/dev/null' USR1
    trap 'cancelled=1; kill -TERM "$child" 2>/dev/null' TERM
    "$@" &
    child=$!
    while :; do # a trap ends `wait` early
        wait "$child"
        status=$?
        kill -0 "$child" 2>/dev/null || break
    done
    trap '' USR1
    case $status in
    0) say "done" ;;
    75)
        if [ $cancelled = 1 ] && [ $warned = 0 ]; then say "cancelled; a checkpoint is written"
        elif [ -e "$RUN_DIR/stop" ]; then say "$RUN_DIR/stop ended the run; sbatch again goes on"; status=0
        elif [ "${SLURM_RESTART_COUNT:-0}" -ge "${MAX_RESTARTS:-100}" ]; then say "restarted $SLURM_RESTART_COUNT times: not again"
        else
            say "stopped with a checkpoint: requeued"
            scontrol requeue "$SLURM_JOB_ID" || say "cannot be requeued: submit again to go on"
        fi ;;
    3) say "a gate failed: not requeued, see $RUN_DIR/log.txt" ;;
    *) say "failed with status $status: not requeued, see $RUN_DIR/log.txt; submit again to go on from the newest checkpoint" ;;
    esac
    exit "$status"
}
