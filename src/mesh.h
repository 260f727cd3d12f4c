/* The process mesh: rank = (pp_rank * dp + dp_rank) * tp + tp_rank. Expert groups are cut from the tp x dp plane of each
 * pipeline stage: with p = dp_rank * tp + tp_rank, an expert group is ep consecutive p and the expert-data group joins
 * equal p mod ep. A KV head held by several tp ranks (tp > num_key_value_heads) makes the kv group: the ranks of the
 * plane with the same KV head. Training and rollout each build one. */
#ifndef MESH_H
#define MESH_H
#include "arch.h"
#include "comm.h"

enum { MESH_MAX_STAGES = 128 };

struct mesh {
    int tp, pp, ep, dp;
    int tp_rank, pp_rank, ep_rank, dp_rank;
    int first_layer, layers;   /* of this stage */
    int stage_first[MESH_MAX_STAGES + 1]; /* first layer of each stage; [pp]: all layers */
    int kv_heads;              /* KV heads this rank holds */
    int kv_first;              /* the first of them */
    struct group world;
    struct group tp_group, pp_group, dp_group; /* members differ only in that coordinate */
    struct group plane;        /* tp x dp of this stage: who holds what is not split at all */
    struct group kv_group;     /* plane ranks with my KV heads; equals dp when tp <= KV heads */
    struct group ep_group, edp_group;
};

struct mesh_shape {
    int tp, pp, ep, dp;        /* dp 0: as many as fit */
    const int *layers_per_stage; /* pp numbers, or NULL: even, the first stages take what is left over */
};

/* Checks the shape against the architecture and the world size without communicating, fills dp when it is 0.
 * ERR_CONFIG with both numbers and what would fit. */
enum status mesh_check(struct mesh_shape *s, const struct arch *a, int world);
/* Builds the groups. *Collective over all ranks.* */
enum status mesh_create(struct mesh *m, struct mesh_shape s, const struct arch *a);
/* The mesh as rank `rank` of `world` would see it, groups with size and rank but without communicators: for planning. Owns
 * nothing; not for mesh_destroy(). */
enum status mesh_plan(struct mesh *m, struct mesh_shape s, const struct arch *a, int world, int rank);
/* A mesh of this rank alone: score, generate and tools. */
enum status mesh_single(struct mesh *m, const struct arch *a);
void mesh_destroy(struct mesh *m);
/* Coordinates, layers and KV heads of any rank of the mesh, without groups. */
void mesh_at(struct mesh *out, const struct mesh *m, const struct arch *a, int rank);
/* Stage layout: first layer and count of stage `stage`. */
void mesh_stage(const struct mesh_shape *s, int layers, int stage, int *first, int *count);
/* One line a rank on rank 0: rank, host, local rank, device, coordinates. *Collective over all ranks.* */
enum status mesh_print(struct mesh *m, const char *device);
#endif
