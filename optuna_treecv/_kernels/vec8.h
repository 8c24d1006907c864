/* Vectors of a multiple of 8 numbers, and the one order in which their products are summed:
 * product j adds to partial sum j mod 8, and the eight partial sums meet pairwise,
 *     ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)).
 * The vector types of GCC and Clang keep the eight sums in registers. GCC holds a vector that is wider than those of a
 * clone (dispatch.h) in memory, which takes six times as long; so eight numbers are in parts of 32 bytes, the width of
 * AVX2, or of 16 bytes. For other compilers a part is one number, with the same order. */
#ifndef OPTUNA_TREECV_VEC8_H
#define OPTUNA_TREECV_VEC8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "dispatch.h"

#define SUM8(s) (((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))

#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12) /* older GCC has no shufflevector */
#define VECTOR_TYPES

#ifdef HAS_DISPATCH
#define PART_BYTES 32
#else
#define PART_BYTES 16
#endif

typedef double part_double __attribute__((vector_size(PART_BYTES), aligned(8), may_alias));
typedef float part_float __attribute__((vector_size(PART_BYTES), aligned(4), may_alias));
typedef float narrow_part __attribute__((vector_size(PART_BYTES / 2), aligned(4), may_alias)); /* half of the floats */
typedef double wide_part __attribute__((vector_size(2 * PART_BYTES))); /* the floats of a part in float64 */
typedef double vec8_double __attribute__((vector_size(64), aligned(8), may_alias));
typedef float vec8_float __attribute__((vector_size(32), aligned(4), may_alias));
typedef double vec2_double __attribute__((vector_size(16)));
typedef float vec2_float __attribute__((vector_size(16)));
typedef int64_t bits2_double __attribute__((vector_size(16)));
typedef int32_t bits2_float __attribute__((vector_size(16)));

/* Room for the parts of eight numbers, a loop over these, and part p of the eight numbers at x. */
#define VEC8(T, name) part_##T name[8 * sizeof(T) / PART_BYTES] = {{0}}
#define PARTS(T) _Pragma("GCC unroll 4") for (int p = 0; p < 8 * (int)sizeof(T) / PART_BYTES; p++)
#define PART(T, x) (*(part_##T *)((x) + p * (PART_BYTES / (int)sizeof(T))))

#define WIDE_float(x) __builtin_convertvector(*(const narrow_part *)((x) + p * (PART_BYTES / 8)), part_double)

/* The two last additions, of four numbers. */
#define SUM4(s) (s += __builtin_shufflevector(s, s, 2, 3, 0, 1), s[0] + s[1])

static INLINED double sum8_double(const part_double *of)
{
#if PART_BYTES == 32
    part_double s = of[0] + of[1];
    return SUM4(s);
#else
    part_double s = (of[0] + of[2]) + (of[1] + of[3]);
    return s[0] + s[1];
#endif
}

static INLINED float sum8_float(const part_float *of)
{
#if PART_BYTES == 32
    part_float s = of[0] + __builtin_shufflevector(of[0], of[0], 4, 5, 6, 7, 0, 1, 2, 3);
    s += __builtin_shufflevector(s, s, 2, 3, 0, 1, 6, 7, 4, 5);
    return s[0] + s[1];
#else
    part_float s = of[0] + of[1];
    return SUM4(s);
#endif
}

#define BY_float(f, y) __builtin_convertvector((f) * __builtin_convertvector(y, wide_part), part_float)

#define DEFINE_IF_BELOW(T)                                                                                             \
    static INLINED T if_below_##T(T c, T x, T limit)                                                                   \
    {                                                                                                                  \
        vec2_##T one = {c}, compared = {x}, limits = {limit};                                                          \
        one = (vec2_##T)((bits2_##T)one & (bits2_##T)(compared < limits));                                             \
        return one[0];                                                                                                 \
    }

#else /* a part is one number */

typedef double part_double;
typedef float part_float;

#define VEC8(T, name) T name[8] = {0}
#define PARTS(T) for (int p = 0; p < 8; p++)
#define PART(T, x) (x)[p]
#define WIDE_float(x) (double)(x)[p]
#define BY_float(f, y) (float)((f) * (double)(y))
#define sum8_double SUM8
#define sum8_float SUM8

#define DEFINE_IF_BELOW(T)                                                                                             \
    static INLINED T if_below_##T(T c, T x, T limit)                                                                   \
    {                                                                                                                  \
        return x < limit ? c : 0;                                                                                      \
    }

#endif

/* The part p of the eight numbers at x in float64, and the part y times the float64 f, rounded to its type. */
#define WIDE_double(x) PART(double, x)
#define BY_double(f, y) ((f) * (y))

#define DEFINE_VEC8(T)                                                                                                 \
    static INLINED T dot8_##T(const T *a, const T *b, ptrdiff_t width)                                                 \
    {                                                                                                                  \
        VEC8(T, s);                                                                                                    \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            PARTS(T) s[p] += PART(T, a + j) * PART(T, b + j);                                                          \
        return sum8_##T(s);                                                                                            \
    }                                                                                                                  \
    static INLINED void axpy8_##T(T c, const T *x, T *y, ptrdiff_t width)                                              \
    {                                                                                                                  \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            PARTS(T) PART(T, y + j) += c * PART(T, x + j);                                                             \
    }                                                                                                                  \
    static INLINED void scale8_##T(const T *x, const T *shift, const T *factor, T *out, ptrdiff_t width)               \
    {                                                                                                                  \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            PARTS(T) PART(T, out + j) = (PART(T, x + j) - PART(T, shift + j)) * PART(T, factor + j);                   \
    }                                                                                                                  \
    static INLINED void dots8_##T(const T *a, const T *b, const T *c, const T *d, ptrdiff_t width, T *ab, T *cd)       \
    {                                                                                                                  \
        VEC8(T, s);                                                                                                    \
        VEC8(T, r);                                                                                                    \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            PARTS(T)                                                                                                   \
            {                                                                                                          \
                s[p] += PART(T, a + j) * PART(T, b + j);                                                               \
                r[p] += PART(T, c + j) * PART(T, d + j);                                                               \
            }                                                                                                          \
        *ab = sum8_##T(s);                                                                                             \
        *cd = sum8_##T(r);                                                                                             \
    }                                                                                                                  \
    static INLINED void steps8_##T(T c, const T *x, T *y, const T *a, T d, const T *u, T *v, const T *b,               \
                                   ptrdiff_t width, T *ya, T *vb)                                                      \
    {                                                                                                                  \
        VEC8(T, s);                                                                                                    \
        VEC8(T, r);                                                                                                    \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            PARTS(T)                                                                                                   \
            {                                                                                                          \
                part_##T y8 = PART(T, y + j) + c * PART(T, x + j);                                                     \
                part_##T v8 = PART(T, v + j) + d * PART(T, u + j);                                                     \
                PART(T, y + j) = y8;                                                                                   \
                PART(T, v + j) = v8;                                                                                   \
                s[p] += y8 * PART(T, a + j);                                                                           \
                r[p] += v8 * PART(T, b + j);                                                                           \
            }                                                                                                          \
        *ya = sum8_##T(s);                                                                                             \
        *vb = sum8_##T(r);                                                                                             \
    }                                                                                                                  \
    static INLINED T stepped8_##T(T c, const T *x, const T *y, double f, const T *a, ptrdiff_t width)                  \
    {                                                                                                                  \
        VEC8(T, s);                                                                                                    \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            PARTS(T)                                                                                                   \
            {                                                                                                          \
                part_##T y8 = PART(T, y + j) + c * PART(T, x + j);                                                     \
                s[p] += BY_##T(f, y8) * PART(T, a + j);                                                                \
            }                                                                                                          \
        return sum8_##T(s);                                                                                            \
    }                                                                                                                  \
    static INLINED T distance8_##T(const T *a, const T *b, ptrdiff_t width)                                            \
    {                                                                                                                  \
        VEC8(T, s);                                                                                                    \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            PARTS(T)                                                                                                   \
            {                                                                                                          \
                part_##T d = PART(T, a + j) - PART(T, b + j);                                                          \
                s[p] += d * d;                                                                                         \
            }                                                                                                          \
        return sum8_##T(s);                                                                                            \
    }

DEFINE_VEC8(double)
DEFINE_VEC8(float)
DEFINE_IF_BELOW(double)
DEFINE_IF_BELOW(float)

/* The same for float64 sums q and float32 rows x, computed in float64: q . x, and q += c x. With AVX-512, two parts
 * take a tenth longer than one vector. */
static INLINED double dot8_mixed(const double *q, const float *x, ptrdiff_t width)
{
    VEC8(double, s);
#ifdef HAS_DISPATCH
    if (HAS_AVX512) {
        vec8_double w = {0};
        for (ptrdiff_t j = 0; j < width; j += 8)
            w += *(const vec8_double *)(q + j) * __builtin_convertvector(*(const vec8_float *)(x + j), vec8_double);
        memcpy(s, &w, sizeof(w));
        return sum8_double(s);
    }
#endif
    for (ptrdiff_t j = 0; j < width; j += 8)
        PARTS(double) s[p] += PART(double, q + j) * WIDE_float(x + j);
    return sum8_double(s);
}

static INLINED void axpy8_mixed(double c, const float *x, double *q, ptrdiff_t width)
{
#ifdef HAS_DISPATCH
    if (HAS_AVX512) {
        for (ptrdiff_t j = 0; j < width; j += 8)
            *(vec8_double *)(q + j) += c * __builtin_convertvector(*(const vec8_float *)(x + j), vec8_double);
        return;
    }
#endif
    for (ptrdiff_t j = 0; j < width; j += 8)
        PARTS(double) PART(double, q + j) += c * WIDE_float(x + j);
}

/* Each function under one name, for the type of the numbers at `at`. */
#define OF_TYPE(FUNCTION, at) _Generic(*(at), double: FUNCTION##_double, float: FUNCTION##_float)
#define dots8(a, b, c, d, width, ab, cd) OF_TYPE(dots8, a)(a, b, c, d, width, ab, cd)
#define steps8(c, x, y, a, d, u, v, b, width, ya, vb) OF_TYPE(steps8, x)(c, x, y, a, d, u, v, b, width, ya, vb)
#define stepped8(c, x, y, f, a, width) OF_TYPE(stepped8, x)(c, x, y, f, a, width)
#define scale8(x, shift, factor, out, width) OF_TYPE(scale8, x)(x, shift, factor, out, width)
#define distance8(a, b, width) OF_TYPE(distance8, a)(a, b, width)
#define if_below8(c, x, limit) _Generic((x), double: if_below_double, float: if_below_float)(c, x, limit)

/* The same for vectors w of the type of the rows x, or of sums. */
#define OF_TYPES(FUNCTION, w, x)                                                                                       \
    _Generic(*(w), float: FUNCTION##_float, double: _Generic(*(x), double: FUNCTION##_double, float: FUNCTION##_mixed))
#define dot8(w, x, width) OF_TYPES(dot8, w, x)(w, x, width)
#define axpy8(c, x, w, width) OF_TYPES(axpy8, w, x)(c, x, w, width)

#endif
