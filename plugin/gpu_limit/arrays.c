/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver tells the size of an array only if its memory is mapped later (CUDA_ARRAY3D_DEFERRED_MAPPING), so an
 * equal array of that kind is made, and destroyed. Drivers before CUDA 11.6, and drivers without such arrays, answer an
 * error. Then the size is that of the elements, without what the driver adds to fill its tiles.
 */
#include "arrays.h"

#include <stdbool.h>
#include <stddef.h>

#include "driver.h"

/* The sides of a compressed block, BC1 to BC7. */
enum { BLOCK = 4, NOT_IN_BLOCKS = 1 };

struct format {
    int first, last;      /* CUarray_format, cuda.h of CUDA 13.0 */
    uint64_t bits;        /* of an element, or of each of its channels */
    bool is_for_channels; /* the element has as many channels as the descriptor says */
    uint64_t block;       /* elements on each side that are stored together */
};

static const struct format formats[] = {
    {0x01, 0x01, 8, true, NOT_IN_BLOCKS},    /* UNSIGNED_INT8 */
    {0x02, 0x02, 16, true, NOT_IN_BLOCKS},   /* UNSIGNED_INT16 */
    {0x03, 0x03, 32, true, NOT_IN_BLOCKS},   /* UNSIGNED_INT32 */
    {0x08, 0x08, 8, true, NOT_IN_BLOCKS},    /* SIGNED_INT8 */
    {0x09, 0x09, 16, true, NOT_IN_BLOCKS},   /* SIGNED_INT16 */
    {0x0a, 0x0a, 32, true, NOT_IN_BLOCKS},   /* SIGNED_INT32 */
    {0x10, 0x10, 16, true, NOT_IN_BLOCKS},   /* HALF */
    {0x20, 0x20, 32, true, NOT_IN_BLOCKS},   /* FLOAT */
    {0x50, 0x50, 32, false, NOT_IN_BLOCKS},  /* UNORM_INT_101010_2 */
    {0x91, 0x92, 4, false, BLOCK},           /* BC1 */
    {0x93, 0x96, 8, false, BLOCK},           /* BC2, BC3 */
    {0x97, 0x98, 4, false, BLOCK},           /* BC4 */
    {0x99, 0x9e, 8, false, BLOCK},           /* BC5, BC6H, BC7 */
    {0x9f, 0x9f, 24, false, NOT_IN_BLOCKS},  /* P010: 16 bits, and two of 16 for each four elements */
    {0xa1, 0xa1, 24, false, NOT_IN_BLOCKS},  /* P016 */
    {0xa2, 0xa2, 16, false, NOT_IN_BLOCKS},  /* NV16: 8 bits, and two of 8 for each two elements */
    {0xa3, 0xa4, 32, false, NOT_IN_BLOCKS},  /* P210, P216 */
    {0xa5, 0xa5, 16, false, NOT_IN_BLOCKS},  /* YUY2 */
    {0xa6, 0xa7, 32, false, NOT_IN_BLOCKS},  /* Y210, Y216 */
    {0xa8, 0xa9, 32, false, NOT_IN_BLOCKS},  /* AYUV, Y410 */
    {0xb0, 0xb0, 12, false, NOT_IN_BLOCKS},  /* NV12: 8 bits, and two of 8 for each four elements */
    {0xb1, 0xb1, 64, false, NOT_IN_BLOCKS},  /* Y416 */
    {0xb2, 0xb2, 24, false, NOT_IN_BLOCKS},  /* Y444_PLANAR8 */
    {0xb3, 0xb3, 48, false, NOT_IN_BLOCKS},  /* Y444_PLANAR10 */
    {0xb4, 0xb4, 24, false, NOT_IN_BLOCKS},  /* YUV444_8bit_SemiPlanar */
    {0xb5, 0xb5, 48, false, NOT_IN_BLOCKS},  /* YUV444_16bit_SemiPlanar */
    {0xc0, 0xc0, 8, false, NOT_IN_BLOCKS},   /* UNORM_INT8X1 */
    {0xc1, 0xc1, 16, false, NOT_IN_BLOCKS},  /* UNORM_INT8X2 */
    {0xc2, 0xc2, 32, false, NOT_IN_BLOCKS},  /* UNORM_INT8X4 */
    {0xc3, 0xc3, 16, false, NOT_IN_BLOCKS},  /* UNORM_INT16X1 */
    {0xc4, 0xc4, 32, false, NOT_IN_BLOCKS},  /* UNORM_INT16X2 */
    {0xc5, 0xc5, 64, false, NOT_IN_BLOCKS},  /* UNORM_INT16X4 */
    {0xc6, 0xc6, 8, false, NOT_IN_BLOCKS},   /* SNORM_INT8X1 */
    {0xc7, 0xc7, 16, false, NOT_IN_BLOCKS},  /* SNORM_INT8X2 */
    {0xc8, 0xc8, 32, false, NOT_IN_BLOCKS},  /* SNORM_INT8X4 */
    {0xc9, 0xc9, 16, false, NOT_IN_BLOCKS},  /* SNORM_INT16X1 */
    {0xca, 0xca, 32, false, NOT_IN_BLOCKS},  /* SNORM_INT16X2 */
    {0xcb, 0xcb, 64, false, NOT_IN_BLOCKS},  /* SNORM_INT16X4 */
};

/* Of a later CUDA: as wide as the widest common channel. */
static const struct format unknown = {0, 0, 32, true, NOT_IN_BLOCKS};

static const struct format *format_of(int number)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (number >= formats[i].first && number <= formats[i].last)
            return &formats[i];
    return &unknown;
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

static uint64_t at_least_one(uint64_t number)
{
    return number ? number : 1;
}

/* Give a side of a level in elements, rounded up to complete blocks. */
static uint64_t side(uint64_t length, unsigned level, uint64_t block)
{
    uint64_t elements = at_least_one(length >> level);
    return elements > UINT64_MAX - block ? UINT64_MAX : (elements + block - 1) / block * block;
}

static uint64_t elements_bytes(const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    const struct format *format = format_of(what->Format);
    uint64_t bits = product(format->bits, format->is_for_channels ? at_least_one(what->NumChannels) : 1), sum = 0;
    for (unsigned level = 0; level < at_least_one(levels) && level < 64; level++) {
        /* A flat array has one row, also of blocks. */
        uint64_t rows = what->Height ? side(what->Height, level, format->block) : 1;
        uint64_t layers = at_least_one(what->Depth >> (what->Flags & CUDA_ARRAY3D_LAYERED ? 0 : level));
        uint64_t elements = product(side(what->Width, level, format->block), product(rows, layers));
        uint64_t all = product(elements, bits);
        uint64_t bytes = all == UINT64_MAX ? UINT64_MAX : all / 8 + (all % 8 != 0);
        sum = bytes > UINT64_MAX - sum ? UINT64_MAX : sum + bytes;
    }
    return sum;
}

/* These get their memory by cuMemMapArrayAsync: that of cuMemCreate. */
static bool gets_memory_later(const CUDA_ARRAY3D_DESCRIPTOR *what)
{
    return what == NULL || what->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

uint64_t arrays_bytes(const CUDA_ARRAY3D_DESCRIPTOR *what)
{
    if (gets_memory_later(what))
        return 0;
    CUDA_ARRAY3D_DESCRIPTOR equal = *what;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needed = {0};
    CUarray array;
    CUdevice device;
    equal.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (DRIVER(cuCtxGetDevice)(&device) == CUDA_SUCCESS && DRIVER(cuArray3DCreate_v2)(&array, &equal) == CUDA_SUCCESS) {
        DRIVER(cuArrayGetMemoryRequirements)(&needed, array, device);
        DRIVER(cuArrayDestroy)(array);
    }
    return needed.size ? needed.size : elements_bytes(what, 1);
}

uint64_t arrays_mipmapped_bytes(const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    if (gets_memory_later(what))
        return 0;
    CUDA_ARRAY3D_DESCRIPTOR equal = *what;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needed = {0};
    CUmipmappedArray array;
    CUdevice device;
    equal.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (DRIVER(cuCtxGetDevice)(&device) == CUDA_SUCCESS &&
        DRIVER(cuMipmappedArrayCreate)(&array, &equal, levels) == CUDA_SUCCESS) {
        DRIVER(cuMipmappedArrayGetMemoryRequirements)(&needed, array, device);
        DRIVER(cuMipmappedArrayDestroy)(array);
    }
    return needed.size ? needed.size : elements_bytes(what, levels);
}
