/* The moments of rows, eight columns at a time. See moments.pxd for the formulas. */
#ifndef OPTUNA_TREECV_MOMENTS8_H
#define OPTUNA_TREECV_MOMENTS8_H

#include "vec8.h"

/* Merge the moments of the rows start..stop-1, or order[start], ..., order[stop-1], in eight columns: the mean of the
 * new rows first, then their squared deviations from it. X, mean and M2 begin at the first of the columns. */
#define DEFINE_MERGE8(T)                                                                                               \
    static INLINED void merge8_##T(const T *X, ptrdiff_t width, ptrdiff_t start, ptrdiff_t stop,                       \
                                   const uint32_t *order, double n_seen, double *mean, double *M2)                     \
    {                                                                                                                  \
        double m = (double)(stop - start), share = m / (n_seen + m), product = n_seen * share;                         \
        VEC8(double, sum);                                                                                             \
        VEC8(double, squares);                                                                                         \
        for (ptrdiff_t i = start; i < stop; i++) {                                                                     \
            const T *x = X + (order ? order[i] : i) * width;                                                           \
            PARTS(double) sum[p] += WIDE_##T(x);                                                                       \
        }                                                                                                              \
        if (stop - start > 1) {                                                                                        \
            PARTS(double) sum[p] /= m;                                                                                 \
            for (ptrdiff_t i = start; i < stop; i++) {                                                                 \
                const T *x = X + (order ? order[i] : i) * width;                                                       \
                PARTS(double)                                                                                          \
                {                                                                                                      \
                    part_double d = WIDE_##T(x) - sum[p];                                                              \
                    squares[p] += d * d;                                                                               \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        PARTS(double)                                                                                                  \
        {                                                                                                              \
            part_double delta = sum[p] - PART(double, mean);                                                           \
            PART(double, mean) += delta * share;                                                                       \
            PART(double, M2) += squares[p] + delta * delta * product;                                                  \
        }                                                                                                              \
    }

/* Find the number, the mean and the squared deviations of the values that are not missing (NaN) in eight columns; the
 * mean is 0 where there is none. */
#define DEFINE_KNOWN8(T)                                                                                               \
    static INLINED void known8_##T(const T *X, ptrdiff_t width, ptrdiff_t start, ptrdiff_t stop,                       \
                                   const uint32_t *order, double *n_known, double *mean, double *M2)                   \
    {                                                                                                                  \
        double n[8] = {0}, sum[8] = {0}, squares[8] = {0};                                                             \
        for (ptrdiff_t i = start; i < stop; i++) {                                                                     \
            const T *x = X + (order ? order[i] : i) * width;                                                           \
            for (ptrdiff_t j = 0; j < 8; j++) {                                                                        \
                n[j] += x[j] == x[j] ? 1.0 : 0.0;                                                                      \
                sum[j] += x[j] == x[j] ? (double)x[j] : 0.0;                                                           \
            }                                                                                                          \
        }                                                                                                              \
        for (ptrdiff_t j = 0; j < 8; j++)                                                                              \
            sum[j] = n[j] > 0 ? sum[j] / n[j] : 0;                                                                     \
        for (ptrdiff_t i = start; i < stop; i++) {                                                                     \
            const T *x = X + (order ? order[i] : i) * width;                                                           \
            for (ptrdiff_t j = 0; j < 8; j++) {                                                                        \
                double d = (double)x[j] - sum[j];                                                                      \
                squares[j] += d == d ? d * d : 0.0;                                                                    \
            }                                                                                                          \
        }                                                                                                              \
        for (ptrdiff_t j = 0; j < 8; j++) {                                                                            \
            n_known[j] = n[j];                                                                                         \
            mean[j] = sum[j];                                                                                          \
            M2[j] = squares[j];                                                                                        \
        }                                                                                                              \
    }

DEFINE_MERGE8(double)
DEFINE_MERGE8(float)
DEFINE_KNOWN8(double)
DEFINE_KNOWN8(float)

#define merge8(X, width, start, stop, order, n_seen, mean, M2)                                                         \
    OF_TYPE(merge8, X)(X, width, start, stop, order, n_seen, mean, M2)
#define known8(X, width, start, stop, order, n_known, mean, M2)                                                        \
    OF_TYPE(known8, X)(X, width, start, stop, order, n_known, mean, M2)

#endif
