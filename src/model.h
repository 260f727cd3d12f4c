/* The model: the parameter table, its storage, and the views that the layers compute with.
 *
 * The table (struct param) is the one place that knows a parameter's name, global shape, split, dtype, whether it is
 * decayed and trained, and where it lies. Loading, gradients, Adam, HDF5, weight sync, export and planning walk it; no
 * other file does split arithmetic.
 *
 * Letters of shapes, everywhere: T tokens of a packed micro-batch, S sequences, C hidden, H query heads here, K KV heads
 * here, D head size, I index heads here (= K), Di index head size, E experts, El experts here, k experts a token,
 * F expert width, Fd dense width, V vocabulary, Vl vocabulary rows here, L layers.
 *
 * Storage. What is multiplied together lies together: index_q | index_k | q | k | v of a layer are one matrix, gate | up
 * another, w1 | w3 of each expert a third. Weights have one arena of the run's dtype and one of F32 (router gate and
 * bias); gradients of trained parameters have one F32 arena in the same order, so that a bucket (a range that one group
 * reduces) is contiguous in both.
 *
 * Replicas. A parameter's gradient is summed over the ranks that hold the same shard, and those ranks share its Adam
 * state (ZeRO-1): REPLICA_DP for what tp splits, REPLICA_PLANE (tp x dp) for what is not split, REPLICA_KV for KV heads
 * that several tp ranks hold, REPLICA_EXPERT for experts. Every element of the model is owned by exactly one rank. */
#ifndef MODEL_H
#define MODEL_H
#include "arch.h"
#include "mesh.h"
#include "ops.h"
#include "tensor.h"

enum split { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLS, SPLIT_KV, SPLIT_INDEX, SPLIT_EXPERT };
enum replica { REPLICA_DP, REPLICA_PLANE, REPLICA_KV, REPLICA_EXPERT };
enum store { STORE_MAIN, STORE_F32, STORE_COUNT };

struct param {
    char name[120];           /* release name; a layer's routed experts are one row "...experts.w1.weight" */
    int layer;                /* -1: embedding, final norm, head */
    int rank;                 /* dimensions of the global array */
    int64_t dim[3];           /* global shape: [C], [N, C] or [E, F, C] */
    enum split split;
    enum replica replica;
    enum store store;
    bool decay, trained;
    bool here;                /* this rank's stage holds it */
    /* the shard here: global hyperslab start and count, and its place in the arenas (elements). Local element
     * (outer, row, col) is at off + outer * outer_stride + row * count[last] + col. */
    int64_t start[3], count[3];
    int64_t outer_stride;
    int64_t w_off;            /* in the weight arena `store` */
    int64_t g_off;            /* in the gradient arena; -1 when frozen */
};

/* A layer's weights and gradients, ready for the ops. Gradient views are none when frozen or not training. */
struct layer {
    int index;
    bool moe, sparse;
    int64_t index_cols;             /* columns of the index projections in qkv: (I + 1) Di, 0 on dense attention */
    struct tensor input_norm, post_norm, q_norm, k_norm, iq_norm, ik_norm; /* [C] [D] [Di] */
    struct tensor qkv;              /* [index_cols + (H + 2K) D, C] */
    struct tensor o;                /* [C, H D], tp-split on columns */
    struct tensor gate_up, down;    /* dense MLP or shared expert: [2 Fd/tp, C] [C, Fd/tp] */
    struct tensor router, bias;     /* [E, C] [E] f32 */
    struct tensor w13, w2;          /* [El, 2F, C] [El, C, F] */
    struct tensor d_input_norm, d_post_norm, d_q_norm, d_k_norm, d_qkv /* [(H + 2K) D, C] */, d_o, d_gate_up, d_down,
        d_router, d_w13, d_w2;
};

/* A range that one group reduces in one call: contiguous in the weight store and in the gradients. */
struct bucket {
    enum replica replica;
    enum store store;
    bool decay;
    int64_t w_off, g_off, n;        /* elements */
    int layer_min;                  /* complete when the backward of this layer is done (-1: embedding) */
};

struct model {
    struct arch arch;
    const struct mesh *mesh;
    const struct ops *ops;
    struct stream *stream;
    enum dtype dtype;               /* of weights and activations: F32 or BF16 */
    struct param *params;           /* the whole model, all stages, in the release's order */
    int n_params;
    struct layer *layers;           /* of this stage, mesh->layers of them */
    int n_layers;
    bool first, last;               /* stage holds the embedding / the head */
    int64_t vocab_first, vocab_here;
    struct tensor embed, final_norm, head, d_embed, d_final_norm, d_head;
    int64_t store_elems[STORE_COUNT];
    int64_t grad_elems;
    struct arena weights[STORE_COUNT], grads;
    struct tensor store[STORE_COUNT]; /* flat views of the arenas */
    struct tensor grad;               /* flat, f32; none when not training */
    struct bucket *buckets;
    int n_buckets;
    struct chunk *chunks;           /* trained storage in gradient order, for model_walk */
    int n_chunks;
};

/* Builds the table and the layout; allocates no weights. `bucket_elems` bounds a bucket. The mesh must outlive it. */
enum status model_create(struct model *m, const struct arch *a, const struct mesh *mesh, const struct ops *ops,
                         struct stream *stream, enum dtype dtype, int64_t bucket_elems);
/* Allocates the weight arenas, or the gradient arena beside them, and binds the layers' views. */
enum status model_alloc(struct model *m);
/* The weights elsewhere than where the ops compute: to be kept, not to be used by them. */
enum status model_alloc_at(struct model *m, enum place place);
enum status model_alloc_grads(struct model *m);
/* Binds m's views to the weights of another model of the same layout; m owns none. */
void model_alias(struct model *m, const struct model *owner);
void model_destroy(struct model *m);

/* Bytes of the arenas as model_alloc() will take them. */
size_t model_weight_bytes(const struct model *m);
size_t model_grad_bytes(const struct model *m);
/* Trained and all parameters of the whole model. */
int64_t model_count(const struct model *m, bool trained_only);

/* The global hyperslab of a parameter that the rank at `at` holds; false when its stage does not hold it. */
bool param_shard(const struct param *p, const struct arch *a, const struct mesh *at, int64_t start[3], int64_t count[3]);
struct group *model_group(const struct model *m, enum replica r);
/* The part of a bucket that this rank owns: elements [*first, *first + *n) of it. */
void bucket_share(const struct bucket *b, int rank, int size, int64_t *first, int64_t *n);

/* Local storage of a trained range: calls `visit` for every piece of gradient elements [g_off, g_off + n) as a global
 * hyperslab of its parameter. A piece is contiguous in storage, `at` elements from g_off. Padding is skipped. */
typedef enum status (*piece_fn)(void *ctx, const struct param *p, const int64_t start[3], const int64_t count[3],
                                int64_t at);
enum status model_walk(const struct model *m, int64_t g_off, int64_t n, piece_fn visit, void *ctx);

/* View of a parameter's shard here, outer index e (0 but for experts): [rows, cols] or [n]. */
struct tensor param_weight(const struct model *m, const struct param *p, int64_t e);
struct tensor param_grad(const struct model *m, const struct param *p, int64_t e);
const struct param *model_find(const struct model *m, const char *name);
/* Release name of expert e of a stacked row ("...experts.w1.weight" -> "...experts.5.w1.weight"); others: the name. */
void param_release_name(const struct param *p, int64_t e, char *out, size_t size);
static inline bool param_is_experts(const struct param *p) { return p->split == SPLIT_EXPERT; }
#endif
