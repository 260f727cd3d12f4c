#include "ops.h"

#include <string.h>

#ifdef HAVE_CUDA_BUILD
extern const struct ops ops_cuda;
enum status cuda_available(void); /* OK when a device answers; else ERR_DEVICE with the reason */
static const struct ops *const cuda = &ops_cuda;
#else
static const struct ops *const cuda = NULL;
static enum status cuda_available(void)
{
    return FAIL(ERR_DEVICE, "this program was built without CUDA: nvcc was not found then");
}
#endif

enum status ops_find(const struct ops **ops, const char *device)
{
    bool any = strcmp(device, "auto") == 0;
    *ops = &ops_cpu;
    if (strcmp(device, "cpu") == 0) return OK;
    if (!any && strcmp(device, "cuda") != 0)
        return FAIL(ERR_CONFIG, "device \"%s\" is none of auto, cpu, cuda", device);
    enum status s = cuda_available();
    if (s == OK) *ops = cuda;
    if (s == OK || any) return OK;
    status_prefix(s, "device cuda cannot be had");
    return status_trace(ERR_CONFIG, __FILE__, __LINE__);
}
