#!/bin/bash
# What the Slurm jobs share. A job script sets its variables, sources this, and ends with one line:
#
#     prepare                 finds the program and the launcher
#     check_plan CONFIG ...   starts all ranks once: mesh, MPI size and memory must fit; sets plan_ranks and plan_disk
#     check_nodes             GPUs, and the local disk of every node
#     requeue srun ... "$M3" train ...
#
# Exit statuses of the job, which are those of `m3 train`:
#     0  done
#     75 stopped at a safe point with a checkpoint: the time limit came near, a signal, or RUN_DIR/stop. Ahead of the time
#        limit the job requeues itself and goes on (REQUEUE=0: it ends, and the next job of a chain goes on)
#     3  a gate of the configuration failed
#     2  usage or configuration, or a check before the launch: nothing was started
#     1  or a signal's status: a failure; submit again to go on from the newest checkpoint
# A node that dies is Slurm's own case: #SBATCH --requeue starts the job again, and it resumes.

say() { echo "[$(date +%T)] $*"; }
die() { local status=$1; shift; say "$*" >&2; exit "$status"; }

# Slurm sends USR1 ahead of the time limit (#SBATCH --signal=B:USR1@seconds), possibly while the checks still run, and TERM
# when the job is cancelled, requeued by hand or over its limit. USR1 is repeated: ranks ignore it until they listen.
warned=0 cancelled=0 child='' asking=''
on_usr1() {
    [ $warned = 0 ] || return
    warned=1
    say "the time limit is near: stopping at the next safe point"
    [ -z "$child" ] || ask
}
ask() {
    [ -z "$asking" ] || return
    while kill -USR1 "$child" 2>/dev/null; do sleep 5; done &
    asking=$!
}
on_term() {
    cancelled=1
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}
trap on_usr1 USR1
trap on_term TERM

prepare() {
    [ -n "${SLURM_JOB_ID:-}" ] || die 2 "this is a Slurm job: submit it with sbatch from the project's folder"
    M3=${M3:-build/m3}
    [ -x "$M3" ] || die 2 "$M3 is not there: run make on a node like these, or set M3"
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
    # Slurm's other way to join the tasks (tree) lets some of them talk before all are ready: crashes inside MPI_Init (22.05)
    export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}
    local per_node=${SLURM_NTASKS_PER_NODE:-1}
    case ${LAUNCHER:-srun} in
    srun)
        srun --mpi=list 2>&1 | grep -q pmix || die 2 "this Slurm has no PMIx (srun --mpi=list): set LAUNCHER=mpirun"
        # srun does not take the job's cores a task over by itself (since 22.05)
        launch=(srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --cpu-bind=none --gpu-bind=none --label) ;;
    mpirun)
        command -v mpirun >/dev/null || die 2 "LAUNCHER=mpirun, but there is no mpirun on PATH"
        launch=(mpirun -n "$SLURM_NTASKS" --map-by "ppr:${per_node%%(*}:node" --bind-to none) ;;
    *) die 2 "LAUNCHER=$LAUNCHER is neither srun nor mpirun" ;;
    esac
    launch+=(jobs/bind.sh) # each task on the cores beside its GPU
    say "job $SLURM_JOB_ID${SLURM_RESTART_COUNT:+, restart $SLURM_RESTART_COUNT}: $SLURM_NTASKS tasks on $SLURM_JOB_NODELIST"
}

# The number, or the text, of a top-level key of `m3 plan --json`.
plan_number() { sed -nE "s/^  \"$1\": ([0-9]+),?\$/\1/p" <<<"$plan"; }
plan_text() { sed -nE "s/^  \"$1\": \"(.*)\",?\$/\1/p" <<<"$plan"; }

# check_plan CONFIG [key=value ...]: all ranks are started as for the run. FORCE=1 goes on where the plan says it does not fit.
check_plan() {
    local errors instead
    errors=$(mktemp) || die 1 "no room for temporary files"
    plan=$("${launch[@]}" "$M3" plan "$@" --json ${MACHINE:+--machine "$MACHINE"} 2>"$errors" | sed 's/^ *0: //') # srun's label
    plan_ranks=$(plan_number ranks) plan_disk=$(plan_number node_local_disk_bytes)
    if [ -z "$plan_ranks" ] || [ -z "$plan_disk" ]; then
        grep -E '\] \+[0-9.]+s error: ' "$errors" >&2 || cat "$errors" >&2 # the program's own words, else all there is
        rm -f "$errors"
        die 2 "m3 plan failed: nothing was started"
    fi
    rm -f "$errors"
    [ "$plan_ranks" = "$SLURM_NTASKS" ] ||
        die 2 "MPI sees $plan_ranks ranks, Slurm has $SLURM_NTASKS tasks: is the program built with the MPI of this launcher?"
    if [ -n "$(plan_text why)" ]; then
        instead=$(plan_text instead)
        say "the plan: $(plan_text why)${instead:+; this would fit: $instead}" >&2
        [ "${FORCE:-0}" = 1 ] || die 2 "it does not fit: nothing was started (FORCE=1 goes on)"
    fi
    say "plan: $plan_ranks ranks, $((plan_disk / 1000000000)) GB of local disk a node, limited by $(plan_text limit)"
}

# One task a node looks at its GPUs and at LOCAL_DIR ("": no local disk is needed).
check_nodes() {
    local need=0
    [ -z "${LOCAL_DIR:-}" ] || need=${plan_disk:-0}
    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none --cpu-bind=none --overlap \
        jobs/check_node.sh "${LOCAL_DIR:-}" "$need" "${NEED_GPUS:-0}" || die 2 "a node is not as it must be: nothing was started"
}

# requeue COMMAND...: runs it, and starts the job again when it stopped with a checkpoint ahead of the time limit.
requeue() {
    local status=75 how="nothing was started yet"
    [ ! -e "$RUN_DIR/stop" ] || die 75 "$RUN_DIR/stop is there: remove it to go on"
    if [ $warned = 0 ] && [ $cancelled = 0 ]; then
        "$@" &
        child=$! how="stopped with a checkpoint"
        [ $warned = 0 ] || ask # it came while the child was started
        [ $cancelled = 0 ] || kill -TERM "$child" 2>/dev/null
        while :; do # a trap ends `wait` early
            wait "$child"
            status=$?
            kill -0 "$child" 2>/dev/null || break
        done
    fi
    trap '' USR1
    [ -z "$asking" ] || kill "$asking" 2>/dev/null
    case $status in
    0) say "done" ;;
    75)
        if [ -e "$RUN_DIR/stop" ]; then say "stopped by $RUN_DIR/stop: remove it and submit again to go on"
        elif [ $warned = 0 ] && [ $cancelled = 1 ]; then say "cancelled, or requeued by hand: $how"
        elif [ "${REQUEUE:-1}" = 0 ]; then say "$how: the next job goes on"
        elif [ "${SLURM_RESTART_COUNT:-0}" -ge "${MAX_RESTARTS:-100}" ]; then say "restarted $SLURM_RESTART_COUNT times: not again"
        else
            say "$how: requeued"
            scontrol requeue "$SLURM_JOB_ID" || say "cannot be requeued: submit again to go on"
        fi ;;
    3) say "a gate failed: not requeued, see $RUN_DIR/log.txt" ;;
    *) say "failed with status $status: not requeued, see $RUN_DIR/log.txt; submit again to go on from the newest checkpoint" ;;
    esac
    exit "$status"
}
