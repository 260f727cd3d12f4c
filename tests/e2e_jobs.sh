#!/bin/bash
# The jobs' helpers by themselves: cores beside each GPU, the look at a node, and submitting without Slurm. nvidia-smi and /sys are
# imitated: four GPUs, two beside each half of the cores that this process may use.
. tests/lib.sh
mkdir -p "$dir/bin"
cat >"$dir/bin/nvidia-smi" <<'S'
#!/bin/sh
case $1 in
-L) for i in 0 1 2 3; do echo "GPU $i: NVIDIA H200 (UUID: GPU-$i)"; done ;;
*) for i in 0 1 2 3; do echo "$i, 00000000:${i}B:00.0"; done ;;
esac
S
chmod +x "$dir/bin/nvidia-smi"
allowed=$(awk '/^Cpus_allowed_list/ {print $2}' /proc/self/status)
cores=()
for part in ${allowed//,/ }; do for c in $(seq "${part%-*}" "${part#*-}"); do cores+=("$c"); done; done
half=$((${#cores[@]} / 2))
list() { local IFS=,; echo "${cores[*]:$1:$2}"; }
for i in 0 1 2 3; do
    bus=$dir/sys/bus/pci/devices/0000:${i}b:00.0
    mkdir -p "$bus"
    if [ $i -lt 2 ]; then list 0 $half; else list $half $half; fi >"$bus/local_cpulist"
done
# bound TASK: the cores that the command of this task gets
bound() { PATH=$dir/bin:$PATH SYSFS=$dir/sys SLURM_LOCALID=$1 jobs/bind.sh awk '/^Cpus_allowed_list/ {print $2}' /proc/self/status; }
is() { [ "$1" = "$2" ] || { echo "\"$1\", expected \"$2\""; return 1; }; }
plain() { taskset -c "$1" awk '/^Cpus_allowed_list/ {print $2}' /proc/self/status; }
if [ $half -ge 2 ]; then
    each=$((half / 2))
    for i in 0 1 2 3; do check "task $i beside its GPU" is "$(bound $i)" "$(plain "$(list $((i / 2 * half + i % 2 * each)) $each)")"; done
elif [ $half = 1 ]; then # too few to share: two tasks a core are left where they are
    for i in 0 3; do check "task $i is left alone" is "$(bound $i)" "$allowed"; done
    rm -r "$dir/sys/bus/pci/devices/"*"1b:00.0" "$dir/sys/bus/pci/devices/"*"2b:00.0"
    sed -i 's/0 1 2 3/0 3/' "$dir/bin/nvidia-smi"
    check "task 0 beside its GPU" is "$(bound 0)" "${cores[0]}"
    check "task 3 beside its GPU" is "$(bound 3)" "${cores[1]}"
    sed -i 's/0 3/0 1 2 3/' "$dir/bin/nvidia-smi"
fi
check "NO_BIND leaves a task alone" is "$(NO_BIND=1 bound 0)" "$allowed"
rm -r "$dir/sys"
check "so does a machine without the topology" is "$(bound 0)" "$allowed"
check "the status is the command's" is "$(bound 0 >/dev/null; PATH=$dir/bin:$PATH jobs/bind.sh sh -c 'exit 75'; echo $?)" 75

node() { PATH=$dir/bin:$PATH jobs/check_node.sh "$@"; }
check "four GPUs, a folder" node "$dir/local" 1000 4
check "was made for its owner alone" is "$(stat -c %a "$dir/local")" 700
refuses "five GPUs" 1 "4 GPUs answer, 5 are needed" node "" 0 5
refuses "a disk too small" 1 "GB are needed" node "$dir/local" 1000000000000000 4
refuses "a folder that cannot be" 1 "cannot be made or written" node /proc/m3 1000 4
for job in jobs/*.slurm; do
    refuses "$job without Slurm" 2 "submit it with sbatch" env -u SLURM_JOB_ID bash "$job"
    check "$job has what Slurm reads" grep -q '^#SBATCH --ntasks-per-node=' "$job"
    check "$job launches last" bash -c "tail -n 1 $job | grep -qE '^(requeue )?\"\\\$\{launch\[@\]\}\"'"
done
refuses "submitted from elsewhere" 2 "jobs/common.sh" env SLURM_SUBMIT_DIR="$dir" bash jobs/m3_full.slurm
finish
