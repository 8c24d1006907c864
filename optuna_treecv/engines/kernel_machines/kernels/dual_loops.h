/* The loops over all variables that each SMO step runs. Eight partial results are kept in vectors (vec8.h); equal values
 * are resolved by the smaller index, so that all builds choose the same variables. */
#ifndef OPTUNA_TREECV_DUAL_LOOPS_H
#define OPTUNA_TREECV_DUAL_LOOPS_H

#include <math.h>
#include "vec8.h"

/* The extreme derivatives of the objective, and the index of a variable. */
typedef struct {
    double low, high;
    ptrdiff_t index;
} extremes;

#ifdef VECTOR_TYPES
typedef int64_t part_mask __attribute__((vector_size(PART_BYTES), may_alias));
#define WIDTH (PART_BYTES / 8)
#define LOAD(x) (*(const part_double *)(x))
#define STORE(x, value) (*(part_double *)(x) = (value))
#define FILL(x) ((part_double){0} + (x))
#define CHOOSE(is, a, b) ((part_double)(((is) & (part_mask)(a)) | (~(is) & (part_mask)(b))))
#else
typedef int part_mask;
#define WIDTH 1
#define LOAD(x) (*(x))
#define STORE(x, value) (*(x) = (value))
#define FILL(x) (x)
#define CHOOSE(is, a, b) ((is) ? (a) : (b))
#endif
#define N_PARTS (8 / WIDTH)
#define EACH_PART _Pragma("GCC unroll 8") for (int p = 0; p < N_PARTS; p++)

/* Compute g += step (a - b), and find the smallest g + up with its index, and the largest g + down. */
static DISPATCHED void step_and_scan(double step, const double *restrict a, const double *restrict b,
                                     double *restrict g, const double *restrict up, const double *restrict down,
                                     ptrdiff_t n, extremes *out)
{
    part_double low[N_PARTS], high[N_PARTS], place[N_PARTS];
    ptrdiff_t n8 = n - n % 8, index = -1;
    double best = INFINITY, largest = -INFINITY;
    EACH_PART
    {
        low[p] = FILL(INFINITY);
        high[p] = FILL(-INFINITY);
        place[p] = FILL(0.0);
    }
    for (ptrdiff_t k = 0; k < n8; k += 8)
        EACH_PART
        {
            ptrdiff_t i = k + p * WIDTH;
            part_double value = LOAD(g + i) + step * (LOAD(a + i) - LOAD(b + i));
            part_double u = value + LOAD(up + i), d = value + LOAD(down + i);
            part_mask is_lower = u < low[p], is_higher = d > high[p];
            STORE(g + i, value);
            place[p] = CHOOSE(is_lower, FILL((double)k), place[p]);
            low[p] = CHOOSE(is_lower, u, low[p]);
            high[p] = CHOOSE(is_higher, d, high[p]);
        }
    for (int i = 0; i < 8; i++) {
        double u = ((const double *)low)[i], d = ((const double *)high)[i];
        ptrdiff_t k = (ptrdiff_t)((const double *)place)[i] + i;
        if (u < best || (u == best && index >= 0 && k < index)) {
            best = u;
            index = k;
        }
        largest = d > largest ? d : largest;
    }
    for (ptrdiff_t k = n8; k < n; k++) {
        g[k] += step * (a[k] - b[k]);
        if (g[k] + up[k] < best) {
            best = g[k] + up[k];
            index = k;
        }
        if (g[k] + down[k] > largest)
            largest = g[k] + down[k];
    }
    out->low = best;
    out->high = largest;
    out->index = index;
}

/* Find the variable j whose exchange with variable i decreases the objective most: the largest v^2 / q for the violation
 * v = g_j + down_j - low > 0 and the curvature q = K_ii + K_jj - 2 K_ij. Fractions are compared without divisions. */
static DISPATCHED void find_partner(double low, double diagonal_i, const double *restrict row,
                                    const double *restrict diagonal, const double *restrict g,
                                    const double *restrict down, ptrdiff_t n, double min_curvature, extremes *out)
{
    part_double top[N_PARTS], bottom[N_PARTS], place[N_PARTS];
    ptrdiff_t n8 = n - n % 8, index = -1;
    double v_best = 0, q_best = 1;
    EACH_PART
    {
        top[p] = FILL(0.0);
        bottom[p] = FILL(1.0);
        place[p] = FILL(0.0);
    }
    for (ptrdiff_t k = 0; k < n8; k += 8)
        EACH_PART
        {
            ptrdiff_t i = k + p * WIDTH;
            part_double v = LOAD(g + i) + LOAD(down + i) - low;
            part_double q = diagonal_i + LOAD(diagonal + i) - 2 * LOAD(row + i);
            v = CHOOSE(v > FILL(0.0), v, FILL(0.0));
            q = CHOOSE(q > FILL(min_curvature), q, FILL(min_curvature));
            part_mask is_better = v * v * bottom[p] > top[p] * q;
            place[p] = CHOOSE(is_better, FILL((double)k), place[p]);
            top[p] = CHOOSE(is_better, v * v, top[p]);
            bottom[p] = CHOOSE(is_better, q, bottom[p]);
        }
    for (int i = 0; i < 8; i++) {
        double v = ((const double *)top)[i], q = ((const double *)bottom)[i];
        ptrdiff_t k = (ptrdiff_t)((const double *)place)[i] + i;
        if (v * q_best > v_best * q || (v > 0 && v * q_best == v_best * q && k < index)) {
            v_best = v;
            q_best = q;
            index = k;
        }
    }
    for (ptrdiff_t k = n8; k < n; k++) {
        double v = g[k] + down[k] - low, q = diagonal_i + diagonal[k] - 2 * row[k];
        v = v > 0 ? v : 0;
        q = q > min_curvature ? q : min_curvature;
        if (v * v * q_best > v_best * q) {
            v_best = v * v;
            q_best = q;
            index = k;
        }
    }
    out->index = index;
}

/* Compute g += p a + q b + r c + s d. */
static DISPATCHED void add_rows(const double *restrict a, const double *restrict b, const double *restrict c,
                                const double *restrict d, double p, double q, double r, double s, double *restrict g,
                                ptrdiff_t n)
{
    for (ptrdiff_t k = 0; k < n; k++)
        g[k] += (p * a[k] + q * b[k]) + (r * c[k] + s * d[k]);
}

#endif
