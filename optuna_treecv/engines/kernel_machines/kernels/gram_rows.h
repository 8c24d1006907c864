/* Products of rows, computed the same for any choice of rows and in all builds: product k is added to the sum of the
 * first k ones. */
#ifndef OPTUNA_TREECV_GRAM_ROWS_H
#define OPTUNA_TREECV_GRAM_ROWS_H

#include "vec8.h"

/* Compute out[r][j] = x[r] . y_j for n_rows rows x and all rows y, which are packed in blocks of eight: (n_blocks, d, 8).
 * The sums are kept in vectors of a type. */
#define MULTIPLY(type, n_rows)                                                                                         \
    for (ptrdiff_t j = 0; j < n; j += 8) {                                                                             \
        const double *block = packed + j * d;                                                                          \
        type sums[n_rows][64 / sizeof(type)];                                                                          \
        memset(sums, 0, sizeof sums);                                                                                  \
        for (ptrdiff_t k = 0; k < d; k++)                                                                              \
            _Pragma("GCC unroll 8") for (size_t p = 0; p < 64 / sizeof(type); p++)                                     \
                _Pragma("GCC unroll 4") for (int r = 0; r < n_rows; r++)                                               \
                    sums[r][p] += x[r][k] * ((const type *)(block + 8 * k))[p];                                        \
        _Pragma("GCC unroll 4") for (int r = 0; r < n_rows; r++)                                                       \
            if (n - j < 8)                                                                                             \
                memcpy(out[r] + j, sums[r], 8 * (n - j));                                                              \
            else                                                                                                       \
                _Pragma("GCC unroll 8") for (size_t p = 0; p < 64 / sizeof(type); p++)                                 \
                    ((type *)(out[r] + j))[p] = sums[r][p];                                                            \
    }

typedef const double *const *row_pointers;

static DISPATCHED void multiply_4(row_pointers x, const double *packed, ptrdiff_t n, ptrdiff_t d, double *const *out)
{
    MULTIPLY(part_double, 4)
}

static DISPATCHED void multiply_1(row_pointers x, const double *packed, ptrdiff_t n, ptrdiff_t d, double *const *out)
{
    MULTIPLY(part_double, 1)
}

#if defined(HAS_DISPATCH) && !defined(NO_AVX512)
/* Only these clones hold a vector of eight numbers in a register. */
__attribute__((target("arch=x86-64-v4"))) static void multiply_4_wide(row_pointers x, const double *packed, ptrdiff_t n,
                                                                      ptrdiff_t d, double *const *out)
{
    MULTIPLY(vec8_double, 4)
}
#else
#define multiply_4_wide multiply_4
#endif

static void multiply_rows(int n_rows, row_pointers x, const double *packed, ptrdiff_t n, ptrdiff_t d, double *const *out)
{
    if (n_rows == 4)
        (HAS_AVX512 ? multiply_4_wide : multiply_4)(x, packed, n, d, out);
    else
        for (int r = 0; r < n_rows; r++)
            multiply_1(x + r, packed, n, d, out + r);
}

#endif
