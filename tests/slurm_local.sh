#!/bin/bash
# A real Slurm on this machine: tests/slurm_local.sh start|stop FOLDER. Debian's munge, slurmctld and one slurmd for each of
# eight nodes, as root and without systemd; everything it writes lies in FOLDER (short: sockets live there), and /etc/slurm
# is left alone. Each slurmd has its own mount and UTS namespace with its own host name, /dev/shm and PMIx folder, so that MPI
# takes the nodes for different hosts; /tmp, the network and the processes are shared. Nodes declare 64 cores and 4 GPUs that
# are not there. `. FOLDER/env` makes sbatch and srun find it. Status 77: Slurm cannot be had or run here.
set -u
nodes=8 cores=64 gpus=4 memory=64000
cannot() { echo "slurm_local: $*" >&2; exit 77; }

packages() {
    local c missing=''
    for c in slurmctld slurmd munged sbatch srun; do command -v $c >/dev/null || missing=1; done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || cannot "no Slurm and no apt-get"
    local list="slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins libpmix2"
    export DEBIAN_FRONTEND=noninteractive
    local get="timeout 200 apt-get -o Acquire::http::Timeout=15 -o Acquire::Retries=1"
    # shellcheck disable=SC2086
    { $get install -y --no-install-recommends $list || { $get update && $get install -y --no-install-recommends $list; }; } \
        >"$base/apt.log" 2>&1 || cannot "apt-get cannot install $list"
}

# Our own munged beside the system's: key, socket and logs in FOLDER.
munge_up() {
    mkdir -m 0700 "$base/munge"
    dd if=/dev/urandom of="$base/munge/key" bs=128 count=8 status=none
    chmod 0400 "$base/munge/key"
    chmod 0711 "$base" "$base/munge"
    munged --force --key-file="$base/munge/key" --socket="$base/munge/socket" --pid-file="$base/munge/pid" \
           --log-file="$base/munge/log" --seed-file="$base/munge/seed" >/dev/null 2>&1 || cannot "munged does not start"
    munge -n --socket="$base/munge/socket" | unmunge --socket="$base/munge/socket" >/dev/null || cannot "munge does not answer"
}

# The first of nine neighbouring ports that nobody uses, from $1 upwards.
free_ports() {
    local p=$1 i=0
    while [ $i -le $nodes ]; do
        if (exec 3<>"/dev/tcp/127.0.0.1/$((p + i))") 2>/dev/null; then p=$((p + i + 1)) i=0; else i=$((i + 1)); fi
    done
    echo "$p"
}

write_conf() {
    local i first host
    host=$(hostname -s)
    first=$(free_ports $((20000 + ($$ + $1 * 1000) % 20000)))
    mkdir -p "$base/state" "$base/spool" "$base/log" "$base/pmix"
    cp /etc/hosts "$base/hosts"
    for i in $(seq $nodes); do echo "127.0.0.1 node$i" >>"$base/hosts"; done
    for i in $(seq 0 $((gpus - 1))); do ln -sfn /dev/null "$base/gpu$i"; done # one file a GPU, or Slurm counts none
    {
        echo "ClusterName=m3test"
        echo "SlurmctldHost=$host(127.0.0.1)"
        echo "SlurmctldPort=$first"
        echo "SlurmUser=root"
        echo "SlurmdUser=root"
        echo "AuthType=auth/munge"
        echo "CredType=cred/munge"
        echo "AuthInfo=socket=$base/munge/socket,cred_expire=5" # a requeued job starts after this many seconds
        echo "StateSaveLocation=$base/state"
        echo "SlurmdSpoolDir=$base/spool/%n"
        echo "SlurmctldPidFile=$base/slurmctld.pid"
        echo "SlurmdPidFile=$base/slurmd.%n.pid"
        echo "SlurmctldLogFile=$base/log/slurmctld"
        echo "SlurmdLogFile=$base/log/%n"
        echo "ProctrackType=proctrack/linuxproc"
        echo "TaskPlugin=task/none"
        echo "JobAcctGatherType=jobacct_gather/none"
        echo "AccountingStorageType=accounting_storage/none"
        echo "SelectType=select/cons_tres"
        echo "SelectTypeParameters=CR_Core"
        echo "SlurmdParameters=config_overrides"
        echo "SchedulerParameters=sched_interval=2,bf_interval=2"
        echo "GresTypes=gpu"
        echo "MpiDefault=none"
        echo "SwitchType=switch/none"
        echo "ReturnToService=2"
        echo "KillWait=5"
        echo "MailProg=/bin/true"
        echo "SlurmctldTimeout=60"
        echo "SlurmdTimeout=60"
        for i in $(seq $nodes); do
            echo "NodeName=node$i NodeAddr=127.0.0.1 Port=$((first + i)) CPUs=$cores Boards=1 SocketsPerBoard=1" \
                 "CoresPerSocket=$cores ThreadsPerCore=1 RealMemory=$memory Gres=gpu:$gpus"
        done
        echo "PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    } >"$base/slurm.conf"
    printf 'AutoDetect=off\nName=gpu File=%s/gpu[0-%d]\n' "$base" $((gpus - 1)) >"$base/gres.conf"
    echo "PMIxCliTmpDirBase=$base/pmix" >"$base/mpi.conf"
    echo "CgroupPlugin=cgroup/v1" >"$base/cgroup.conf"
    printf 'export SLURM_CONF=%s/slurm.conf\n' "$base" >"$base/env"
}

# One scheduling group for all nodes: a kernel that groups by session (autogroup) would let a waiting rank yield to its own
# node only, and a step of 32 ranks on few cores takes twenty times as long.
group_up() {
    mkdir "$group" 2>/dev/null && echo "$$" >"$group/cgroup.procs"
}

node_up() {
    mkdir -p "$base/spool/$1"
    # shellcheck disable=SC2016
    SLURM_CONF=$base/slurm.conf unshare -m -u --propagation private bash -c '
        hostname "$2" && mount -t tmpfs -o mode=1777,size=2g none /dev/shm && mount -t tmpfs -o mode=1777,size=64m none "$1/pmix" &&
        mount --bind "$1/hosts" /etc/hosts && exec slurmd -N "$2" -f "$1/slurm.conf"' _ "$base" "$1" >>"$base/log/start" 2>&1
}

daemons_up() {
    local i
    slurmctld -c -f "$SLURM_CONF" >>"$base/log/start" 2>&1 || return 1
    for i in $(seq $nodes); do node_up "node$i" || return 1; done
    for i in $(seq 300); do
        [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)" = $nodes ] && return
        grep -qs 'bind.*Address already in use' "$base/log/"* && return 1
        sleep 0.2 # the nodes register one by one
    done
    return 1
}

# The daemons take their pid files away before they end: the ids are read first.
daemons_down() {
    local f pid pids=()
    for f in "$@"; do
        pid=$(cat "$f" 2>/dev/null) && [ -n "$pid" ] && kill "$pid" 2>/dev/null && pids+=("$pid")
    done
    for pid in "${pids[@]}"; do
        for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || continue 2; sleep 0.1; done
        kill -9 "$pid" 2>/dev/null
    done
}

start() {
    [ "$(id -u)" = 0 ] || cannot "the daemons of several nodes need root"
    mkdir -p "$base" || cannot "$base: cannot be made"
    unshare -m -u --propagation private hostname probe 2>/dev/null || cannot "no namespaces here: a container without CAP_SYS_ADMIN"
    packages
    munge_up
    export SLURM_CONF=$base/slurm.conf
    group_up 2>/dev/null
    local try
    for try in 1 2 3; do # a port that was free may be taken by the time it is needed
        write_conf "$try"
        srun --mpi=list 2>&1 | grep -q pmix || cannot "this Slurm has no PMIx"
        daemons_up && return
        sinfo -h -N -o '%N %T' >"$base/nodes" 2>&1
        daemons_down "$base"/slurmd.*.pid "$base/slurmctld.pid"
        rm -rf "$base/log" "$base/state" "$base/spool"
    done
    cannot "the nodes do not come up: $(tr '\n' ' ' <"$base/nodes")"
}

stop() {
    [ -d "$base" ] || return 0
    export SLURM_CONF=$base/slurm.conf
    if [ -s "$base/slurmctld.pid" ] && scancel --user=root >/dev/null 2>&1; then
        for _ in $(seq 75); do [ -n "$(squeue -h 2>/dev/null)" ] || break; sleep 0.2; done # its tasks end first
    fi
    daemons_down "$base"/slurmd.*.pid "$base/slurmctld.pid" "$base/munge/pid"
    for _ in $(seq 50); do # the last steps leave it
        [ -d "$group" ] && ! rmdir "$group" 2>/dev/null || break
        sleep 0.1
    done
    rm -rf "$base"
}

if [ $# != 2 ] || [ "${2#/}" = "$2" ]; then echo "usage: slurm_local.sh start|stop /FOLDER" >&2; exit 2; fi
base=$2 group=/sys/fs/cgroup/cpu/m3.$(basename "$2")
case $1 in
start) start ;;
stop) stop ;;
*) echo "usage: slurm_local.sh start|stop /FOLDER" >&2; exit 2 ;;
esac
