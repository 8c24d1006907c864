/* Vectors of a multiple of 8 numbers, and the one order in which their products are summed:
 * product j adds to partial sum j mod 8, and the eight partial sums meet pairwise,
 *     ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)).
 * The vector types of GCC and Clang keep the eight sums in registers, whatever their width. Other compilers use an
 * array, with the same order. */
#ifndef OPTUNA_TREECV_VEC8_H
#define OPTUNA_TREECV_VEC8_H

#include <stddef.h>
#include <stdint.h>
#include "dispatch.h"

#define SUM8(s) (((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))

#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12) /* older GCC has no shufflevector */
#define VECTOR_TYPES

typedef double vec8_double __attribute__((vector_size(64), aligned(8), may_alias));
typedef float vec8_float __attribute__((vector_size(32), aligned(4), may_alias));
typedef double vec2_double __attribute__((vector_size(16)));
typedef float vec2_float __attribute__((vector_size(16)));
typedef int64_t bits2_double __attribute__((vector_size(16)));
typedef int32_t bits2_float __attribute__((vector_size(16)));

#define DEFINE_VEC8(T)                                                                                                 \
    static INLINED T sum8_##T(vec8_##T s)                                                                              \
    {                                                                                                                  \
        s += __builtin_shufflevector(s, s, 4, 5, 6, 7, 0, 1, 2, 3);                                                    \
        s += __builtin_shufflevector(s, s, 2, 3, 0, 1, 6, 7, 4, 5);                                                    \
        return s[0] + s[1];                                                                                            \
    }                                                                                                                  \
    static INLINED T dot8_##T(const T *a, const T *b, ptrdiff_t width)                                                 \
    {                                                                                                                  \
        vec8_##T s = {0};                                                                                              \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            s += *(const vec8_##T *)(a + j) * *(const vec8_##T *)(b + j);                                              \
        return sum8_##T(s);                                                                                            \
    }                                                                                                                  \
    static INLINED void axpy8_##T(T c, const T *x, T *y, ptrdiff_t width)                                              \
    {                                                                                                                  \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            *(vec8_##T *)(y + j) += c * *(const vec8_##T *)(x + j);                                                    \
    }                                                                                                                  \
    static INLINED void scale8_##T(const T *x, const T *shift, const T *factor, T *out, ptrdiff_t width)               \
    {                                                                                                                  \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            *(vec8_##T *)(out + j) = (*(const vec8_##T *)(x + j) - *(const vec8_##T *)(shift + j)) *                   \
                                     *(const vec8_##T *)(factor + j);                                                  \
    }                                                                                                                  \
    static INLINED void dots8_##T(const T *a, const T *b, const T *c, const T *d, ptrdiff_t width, T *ab, T *cd)       \
    {                                                                                                                  \
        vec8_##T s = {0}, r = {0};                                                                                     \
        for (ptrdiff_t j = 0; j < width; j += 8) {                                                                     \
            s += *(const vec8_##T *)(a + j) * *(const vec8_##T *)(b + j);                                              \
            r += *(const vec8_##T *)(c + j) * *(const vec8_##T *)(d + j);                                              \
        }                                                                                                              \
        *ab = sum8_##T(s);                                                                                             \
        *cd = sum8_##T(r);                                                                                             \
    }                                                                                                                  \
    static INLINED void steps8_##T(T c, const T *x, T *y, const T *a, T d, const T *u, T *v, const T *b,               \
                                   ptrdiff_t width, T *ya, T *vb)                                                      \
    {                                                                                                                  \
        vec8_##T s = {0}, r = {0};                                                                                     \
        for (ptrdiff_t j = 0; j < width; j += 8) {                                                                     \
            vec8_##T y8 = *(vec8_##T *)(y + j) + c * *(const vec8_##T *)(x + j);                                       \
            vec8_##T v8 = *(vec8_##T *)(v + j) + d * *(const vec8_##T *)(u + j);                                       \
            *(vec8_##T *)(y + j) = y8;                                                                                 \
            *(vec8_##T *)(v + j) = v8;                                                                                 \
            s += y8 * *(const vec8_##T *)(a + j);                                                                      \
            r += v8 * *(const vec8_##T *)(b + j);                                                                      \
        }                                                                                                              \
        *ya = sum8_##T(s);                                                                                             \
        *vb = sum8_##T(r);                                                                                             \
    }                                                                                                                  \
    static INLINED T stepped8_##T(T c, const T *x, const T *y, double f, const T *a, ptrdiff_t width)                  \
    {                                                                                                                  \
        vec8_##T s = {0};                                                                                              \
        for (ptrdiff_t j = 0; j < width; j += 8) {                                                                     \
            vec8_##T y8 = *(const vec8_##T *)(y + j) + c * *(const vec8_##T *)(x + j);                                 \
            vec8_double w8 = f * __builtin_convertvector(y8, vec8_double);                                             \
            s += __builtin_convertvector(w8, vec8_##T) * *(const vec8_##T *)(a + j);                                   \
        }                                                                                                              \
        return sum8_##T(s);                                                                                            \
    }                                                                                                                  \
    static INLINED T if_below_##T(T c, T x, T limit)                                                                   \
    {                                                                                                                  \
        vec2_##T one = {c}, compared = {x}, limits = {limit};                                                          \
        one = (vec2_##T)((bits2_##T)one & (bits2_##T)(compared < limits));                                             \
        return one[0];                                                                                                 \
    }                                                                                                                  \
    static INLINED T distance8_##T(const T *a, const T *b, ptrdiff_t width)                                            \
    {                                                                                                                  \
        vec8_##T s = {0};                                                                                              \
        for (ptrdiff_t j = 0; j < width; j += 8) {                                                                     \
            vec8_##T d = *(const vec8_##T *)(a + j) - *(const vec8_##T *)(b + j);                                      \
            s += d * d;                                                                                                \
        }                                                                                                              \
        return sum8_##T(s);                                                                                            \
    }

#else

#define DEFINE_VEC8(T)                                                                                                 \
    static INLINED T dot8_##T(const T *a, const T *b, ptrdiff_t width)                                                 \
    {                                                                                                                  \
        T s[8] = {0};                                                                                                  \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            for (int l = 0; l < 8; l++)                                                                                \
                s[l] += a[j + l] * b[j + l];                                                                           \
        return SUM8(s);                                                                                                \
    }                                                                                                                  \
    static INLINED void axpy8_##T(T c, const T *x, T *y, ptrdiff_t width)                                              \
    {                                                                                                                  \
        for (ptrdiff_t j = 0; j < width; j++)                                                                          \
            y[j] += c * x[j];                                                                                          \
    }                                                                                                                  \
    static INLINED void scale8_##T(const T *x, const T *shift, const T *factor, T *out, ptrdiff_t width)               \
    {                                                                                                                  \
        for (ptrdiff_t j = 0; j < width; j++)                                                                          \
            out[j] = (x[j] - shift[j]) * factor[j];                                                                    \
    }                                                                                                                  \
    static INLINED void dots8_##T(const T *a, const T *b, const T *c, const T *d, ptrdiff_t width, T *ab, T *cd)       \
    {                                                                                                                  \
        *ab = dot8_##T(a, b, width);                                                                                   \
        *cd = dot8_##T(c, d, width);                                                                                   \
    }                                                                                                                  \
    static INLINED void steps8_##T(T c, const T *x, T *y, const T *a, T d, const T *u, T *v, const T *b,               \
                                   ptrdiff_t width, T *ya, T *vb)                                                      \
    {                                                                                                                  \
        axpy8_##T(c, x, y, width);                                                                                     \
        axpy8_##T(d, u, v, width);                                                                                     \
        dots8_##T(y, a, v, b, width, ya, vb);                                                                          \
    }                                                                                                                  \
    static INLINED T stepped8_##T(T c, const T *x, const T *y, double f, const T *a, ptrdiff_t width)                  \
    {                                                                                                                  \
        T s[8] = {0};                                                                                                  \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            for (int l = 0; l < 8; l++) {                                                                              \
                T y1 = y[j + l] + c * x[j + l];                                                                        \
                s[l] += (T)(f * (double)y1) * a[j + l];                                                                \
            }                                                                                                          \
        return SUM8(s);                                                                                                \
    }                                                                                                                  \
    static INLINED T if_below_##T(T c, T x, T limit)                                                                   \
    {                                                                                                                  \
        return x < limit ? c : 0;                                                                                      \
    }                                                                                                                  \
    static INLINED T distance8_##T(const T *a, const T *b, ptrdiff_t width)                                            \
    {                                                                                                                  \
        T s[8] = {0};                                                                                                  \
        for (ptrdiff_t j = 0; j < width; j += 8)                                                                       \
            for (int l = 0; l < 8; l++)                                                                                \
                s[l] += (a[j + l] - b[j + l]) * (a[j + l] - b[j + l]);                                                 \
        return SUM8(s);                                                                                                \
    }

#endif

DEFINE_VEC8(double)
DEFINE_VEC8(float)

/* The same for float64 sums q and float32 rows x, computed in float64: q . x, and q += c x. */
static INLINED double dot8_mixed(const double *q, const float *x, ptrdiff_t width)
{
#ifdef VECTOR_TYPES
    vec8_double s = {0};
    for (ptrdiff_t j = 0; j < width; j += 8)
        s += *(const vec8_double *)(q + j) * __builtin_convertvector(*(const vec8_float *)(x + j), vec8_double);
    return sum8_double(s);
#else
    double s[8] = {0};
    for (ptrdiff_t j = 0; j < width; j += 8)
        for (int l = 0; l < 8; l++)
            s[l] += q[j + l] * (double)x[j + l];
    return SUM8(s);
#endif
}

static INLINED void axpy8_mixed(double c, const float *x, double *q, ptrdiff_t width)
{
#ifdef VECTOR_TYPES
    for (ptrdiff_t j = 0; j < width; j += 8)
        *(vec8_double *)(q + j) += c * __builtin_convertvector(*(const vec8_float *)(x + j), vec8_double);
#else
    for (ptrdiff_t j = 0; j < width; j++)
        q[j] += c * (double)x[j];
#endif
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
