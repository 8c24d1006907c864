/* Copies a row of a table to a padded row, eight numbers at a time.
 *
 * A store usually reads its cache line first, and then pushes another one out. Rows that do not fit in the cache are
 * written past it instead, which waits for nothing: neither the order of the rows nor their number of lines matters. */
#ifndef OPTUNA_TREECV_ROW_COPY_H
#define OPTUNA_TREECV_ROW_COPY_H

#include <string.h>
#include "vec8.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#define STREAM16(out, x) _mm_stream_si128((__m128i *)(out), _mm_loadu_si128((const __m128i *)(x)))
#define STREAMS_END() _mm_sfence()
#else
#define STREAM16(out, x) memcpy(out, x, 16)
#define STREAMS_END() ((void)0)
#endif

#ifdef VECTOR_TYPES
#define CHECKS(T) vec8_##T
#define CHECK8(T, x, checks) (checks += 0 * *(const vec8_##T *)(x))
#define SUM_CHECKS(checks) SUM8(checks)
#else
#define CHECKS(T) T
#define CHECK8(T, x, checks)                                                                                           \
    for (int l = 0; l < 8; l++)                                                                                        \
    checks += 0 * (x)[l]
#define SUM_CHECKS(checks) (checks)
#endif

#define DEFINE_ROW_COPY(T)                                                                                             \
    static INLINED void copy8_##T(const T *x, T *out, int past_cache)                                                  \
    {                                                                                                                  \
        if (past_cache)                                                                                                \
            for (int l = 0; l < 8; l += 16 / (int)sizeof(T))                                                           \
                STREAM16(out + l, x + l);                                                                              \
        else                                                                                                           \
            memcpy(out, x, 8 * sizeof(T));                                                                             \
    }                                                                                                                  \
    static INLINED T copy_row_##T(const T *x, ptrdiff_t n, T last, T *out, ptrdiff_t width, int past_cache)            \
    {                                                                                                                  \
        CHECKS(T) checks = {0};                                                                                        \
        T rest[8] = {0};                                                                                               \
        ptrdiff_t j = 0;                                                                                               \
        for (; j + 8 <= n; j += 8) {                                                                                   \
            copy8_##T(x + j, out + j, past_cache);                                                                     \
            CHECK8(T, x + j, checks);                                                                                  \
        }                                                                                                              \
        for (int l = 0; j + l < n; l++)                                                                                \
            rest[l] = x[j + l];                                                                                        \
        CHECK8(T, rest, checks);                                                                                       \
        rest[n - j] = last;                                                                                            \
        for (; j < width; j += 8) {                                                                                    \
            copy8_##T(rest, out + j, past_cache);                                                                      \
            memset(rest, 0, sizeof(rest));                                                                             \
        }                                                                                                              \
        return SUM_CHECKS(checks);                                                                                     \
    }

DEFINE_ROW_COPY(double)
DEFINE_ROW_COPY(float)

/* Writes the n numbers x of a row, then `last` and zeros, as far as `width` has room for them; returns 0 if all numbers
 * are finite, else NaN: 0 * x is 0 only for finite x. With `past_cache`, `out` is on a boundary of 16 bytes. */
#define copy_row(x, n, last, out, width, past_cache) OF_TYPE(copy_row, x)(x, n, last, out, width, past_cache)

#endif
