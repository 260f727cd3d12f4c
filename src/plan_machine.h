/* What a run is planned on: rates and sizes of one kind of machine, read from configs/machines/NAME.yaml, where every
 * number stands with its unit and origin. Rates are those of one rank in one direction; disks and host memory are those
 * of a node. */
#ifndef PLAN_MACHINE_H
#define PLAN_MACHINE_H
#include "status.h"

struct plan_machine {
    char name[64];
    bool gpu;
    int ranks_per_node, link_ranks; /* link_ranks: ranks that the fast links join */
    double flops;                   /* FLOP/s at best */
    double gemm_share, grouped_share, attention_share; /* of flops that each kind of product reaches */
    double memory_bytes_s, memory_share, memory_bytes, reserved_bytes;
    double link_bytes_s, link_share, network_bytes_s, network_share;
    double link_latency_s, network_latency_s, launch_s;
    double host_bytes;
    double disk_bytes, disk_read_bytes_s, disk_write_bytes_s, shared_bytes_s;
};

/* Reads a file, or NAME of configs/machines/NAME.yaml (of the working folder, else beside the program's). Every key must
 * be there once and no other. ERR_CONFIG with file, line and key; ERR_IO when there is no such file. */
enum status plan_machine_load(struct plan_machine *m, const char *name_or_path);
#endif
