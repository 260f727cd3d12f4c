#include "hopper.cuh"

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                    const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function, found without linking the driver's library. */
static enum status find_encode(encode_function *f)
{
    static encode_function found;
    if (!found) {
        void *p = NULL;
        cudaDriverEntryPointQueryResult answer;
        TRY_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &answer));
        if (answer != cudaDriverEntryPointSuccess || !p)
            return FAIL(ERR_DEVICE, "the driver has no cuTensorMapEncodeTiled (answer %d)", (int)answer);
        found = (encode_function)p;
    }
    *f = found;
    return OK;
}

enum status tensor_map(CUtensorMap *map, const void *data, int rank, const int64_t *dim, const int64_t *stride,
                       const int *box)
{
    encode_function encode = NULL;
    TRY(find_encode(&encode));
    cuuint64_t dims[3], strides[2];
    cuuint32_t boxes[3], ones[3] = {1, 1, 1};
    for (int i = 0; i < rank; i++) {
        dims[i] = (cuuint64_t)(dim[i] > 0 ? dim[i] : 1);
        boxes[i] = (cuuint32_t)box[i];
        if (i + 1 < rank) strides[i] = (cuuint64_t)stride[i];
    }
    CUresult r = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, (void *)data, dims, strides, boxes, ones,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS)
        return FAIL(ERR_DEVICE, "tensor map of [%lld, %lld, %lld] at %p, strides %lld, %lld, box %d, %d: error %d",
                    (long long)(rank > 2 ? dim[2] : 1), (long long)dim[1], (long long)dim[0], data, (long long)stride[0],
                    (long long)(rank > 2 ? stride[1] : 0), box[0], box[1], (int)r);
    return OK;
}
