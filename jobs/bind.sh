#!/bin/bash
# bind.sh COMMAND...: runs it on the cores beside this task's GPU. Task i of a node drives GPU i; tasks whose GPUs hang on the
# same cores share them out evenly. Without a GPU, or with NO_BIND=1, the command runs where the launcher put it.
# The time limit's USR1 must not end a task that does not listen yet; the job repeats it.
trap "" USR1
export CUDA_DEVICE_ORDER=PCI_BUS_ID # GPU i of the program is GPU i of nvidia-smi
rank=${SLURM_LOCALID:-${OMPI_COMM_WORLD_LOCAL_RANK:-0}}
[ "${NO_BIND:-0}" = 1 ] || [ -z "$(command -v nvidia-smi)" ] && exec "$@"

# "0-3,8" -> 0 1 2 3 8
cores_of() {
    local part
    for part in ${1//,/ }; do seq "${part%-*}" "${part#*-}"; done
}
mine="" same=() order=0 n=0
while read -r index bus; do
    file=${SYSFS:-/sys}/bus/pci/devices/$(tr '[:upper:]' '[:lower:]' <<<"${bus#0000}")/local_cpulist
    list=$(cat "$file" 2>/dev/null) || exec "$@"
    same[index]=$list
    [ "$index" = "$rank" ] && mine=$list
done < <(nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader,nounits | tr -d ',')
[ -n "$mine" ] || exec "$@"
for index in "${!same[@]}"; do
    [ "${same[index]}" = "$mine" ] || continue
    [ "$index" -lt "$rank" ] && order=$((order + 1))
    n=$((n + 1))
done
allowed=" $(cores_of "$(awk '/^Cpus_allowed_list/ {print $2}' /proc/self/status)" | tr '\n' ' ') "
list=()
for core in $(cores_of "$mine"); do [[ $allowed == *" $core "* ]] && list+=("$core"); done
each=$((${#list[@]} / n))
[ $each -gt 0 ] || exec "$@"
share=$(IFS=,; echo "${list[*]:order * each:each}")
exec taskset -c "$share" "$@"
