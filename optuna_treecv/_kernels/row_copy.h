/* Copies a row of a table to a padded row, eight numbers at a time, and those that are left one by one. (An array for
 * eight of them would be written in parts and then read as a whole, for which the CPU has to wait.)
 *
 * A store usually reads its cache line first, and then pushes another one out. Rows that do not fit in the cache are
 * written past it instead, which waits for nothing: neither the order of the rows nor their number of lines matters. */
#ifndef OPTUNA_TREECV_ROW_COPY_H
#define OPTUNA_TREECV_ROW_COPY_H

#include <string.h>
#include "vec8.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#define STREAM16(out, x) _mm_stream_si128((__m128i *)(out), _mm_loadu_si128((const __m128i *)(x)))
#define STREAMS_END() _mm_sfence()
static INLINED void stream_number(const void *x, void *out, size_t n_bytes)
{
    int four = 0;
    long long eight = 0;
    if (n_bytes == 4) {
        memcpy(&four, x, 4);
        _mm_stream_si32((int *)out, four);
    } else {
        memcpy(&eight, x, 8);
        _mm_stream_si64((long long *)out, eight);
    }
}
#else
#define STREAM16(out, x) memcpy(out, x, 16)
#define STREAMS_END() ((void)0)
#define stream_number(x, out, n_bytes) memcpy(out, x, n_bytes)
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
    static INLINED void copy1_##T(const T *x, T *out, int past_cache)                                                  \
    {                                                                                                                  \
        if (past_cache)                                                                                                \
            stream_number(x, out, sizeof(T));                                                                          \
        else                                                                                                           \
            *out = *x;                                                                                                 \
    }                                                                                                                  \
    static INLINED T copy_row_##T(const T *x, ptrdiff_t n, T last, T *out, ptrdiff_t width, int past_cache)            \
    {                                                                                                                  \
        VEC8(T, checks);                                                                                               \
        T check = 0;                                                                                                   \
        ptrdiff_t j = 0;                                                                                               \
        for (; j + 8 <= n; j += 8) {                                                                                   \
            copy8_##T(x + j, out + j, past_cache);                                                                     \
            PARTS(T) checks[p] += 0 * PART(T, x + j);                                                                  \
        }                                                                                                              \
        for (; j < n; j++) {                                                                                           \
            copy1_##T(x + j, out + j, past_cache);                                                                     \
            check += 0 * x[j];                                                                                         \
        }                                                                                                              \
        for (; j < width; j++) {                                                                                       \
            T padding = j == n ? last : 0;                                                                             \
            copy1_##T(&padding, out + j, past_cache);                                                                  \
        }                                                                                                              \
        return sum8_##T(checks) + check;                                                                               \
    }

DEFINE_ROW_COPY(double)
DEFINE_ROW_COPY(float)

/* Writes the n numbers x of a row, then `last` and zeros, as far as `width` has room for them; returns 0 if all numbers
 * are finite, else NaN: 0 * x is 0 only for finite x. With `past_cache`, `out` is on a boundary of 16 bytes. */
#define copy_row(x, n, last, out, width, past_cache) OF_TYPE(copy_row, x)(x, n, last, out, width, past_cache)

#endif
