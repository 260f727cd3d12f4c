#!/bin/bash
# check_node.sh DIR BYTES GPUS, on one node: GPUs are there (0: none are needed), and DIR ("" : not needed) can be written and
# has BYTES free beside what earlier runs left there. Says what is wrong and ends with 1.
dir=$1 need=$2 gpus=$3 status=0
wrong() { echo "$(hostname): $*" >&2; status=1; }
if [ "$gpus" -gt 0 ]; then
    have=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
    [ "$have" -ge "$gpus" ] || wrong "$have GPUs answer, $gpus are needed"
fi
if [ -n "$dir" ]; then
    if ! (umask 077; mkdir -p "$dir") 2>/dev/null || [ ! -w "$dir" ]; then
        wrong "$dir cannot be made or written: set LOCAL_DIR to a folder of the node's own disk"
    else
        free=$(df --output=avail -B1 "$dir" | tail -n 1)
        old=$(du -sb "$dir" 2>/dev/null | cut -f 1) # state of dead runs: the next start removes it
        [ $((free + ${old:-0})) -ge "$need" ] ||
            wrong "$dir has $((free / 1000000000)) GB free, $((need / 1000000000)) GB are needed"
        kind=$(stat -f -c %T "$dir")
        case $kind in
        tmpfs|ramfs) echo "$(hostname): warning: $dir is in memory ($kind)" >&2 ;;
        nfs*|lustre|gpfs|beegfs|ceph|fuseblk) echo "$(hostname): warning: $dir is not a local disk ($kind)" >&2 ;;
        esac
    fi
fi
exit $status
