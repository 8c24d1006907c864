/* Lanes: one row for many models at once. Weight j of lane l is w[j * n_lanes + l], and the lanes fill vectors of
 * LANE_BYTES. Each lane does the operations of vec8.h and rows.pxd in the same order, so it gives the same bits as a
 * model alone. The loops are in lane_loops.c, which is compiled once for all modules. */
#ifndef OPTUNA_TREECV_LANE_LOOPS_H
#define OPTUNA_TREECV_LANE_LOOPS_H

#include <stddef.h>
#include <stdint.h>
#include "vec8.h"

#define LANE_BYTES 64

/* The weights for a sparse row are scattered over megabytes, so they are prefetched this many nonzeros ahead. */
#define NONZEROS_AHEAD 64

/* lane_dots: out = w . x; lane_two_dots: the same for x and the row after it; lane_add: w += c x; lane_steps: w += c x,
 * then out = w . next, while w is in registers. A sparse row is (columns[i], x[i]) for i < n. lane_dots_sparse needs
 * room for 8 numbers per lane, and the columns of the next row to prefetch their weights. lane_add_sparse adds to the
 * given blocks of lanes, of LANE_BYTES each, and also makes `check` NaN where a weight is not finite. lane_dots_nonzeros and
 * lane_add_nonzeros do the same for a dense row of which only the columns in the bit set `nonzeros` are read; the latter
 * returns 0 if `check` stays as it is. Each function exists for float64 (`double`), for float32 (`float`), and for float32 rows with vectors of float64 (`wide`). */
#define DECLARE_LANES(NAME, X, W)                                                                                      \
    void lane_dots_##NAME(const X *x, const W *w, ptrdiff_t width, ptrdiff_t n_lanes, W *out);                         \
    void lane_two_dots_##NAME(const X *x, const W *w, ptrdiff_t width, ptrdiff_t n_lanes, W *out);                     \
    void lane_add_##NAME(const X *x, const W *c, W *w, ptrdiff_t width, ptrdiff_t n_lanes);                            \
    void lane_steps_##NAME(const X *x, const W *c, W *w, const X *next, ptrdiff_t width, ptrdiff_t n_lanes, W *out);   \
    void lane_dots_sparse_##NAME(const X *x, const int32_t *columns, ptrdiff_t n, const int32_t *next,                 \
                                 ptrdiff_t n_next, const W *w, ptrdiff_t n_lanes, W *room, W *out);                    \
    void lane_add_sparse_##NAME(const X *x, const int32_t *columns, ptrdiff_t n, const W *c, W *w, ptrdiff_t n_lanes,  \
                                const ptrdiff_t *blocks, ptrdiff_t n_blocks, double *check);                           \
    void lane_dots_nonzeros_##NAME(const X *x, const uint64_t *nonzeros, ptrdiff_t width, const W *w,                  \
                                   ptrdiff_t n_lanes, W *out);                                                         \
    int lane_add_nonzeros_##NAME(const X *x, const uint64_t *nonzeros, ptrdiff_t width, const W *c, W *w,              \
                                 ptrdiff_t n_lanes, double *check);

DECLARE_LANES(double, double, double)
DECLARE_LANES(float, float, float)
DECLARE_LANES(wide, float, double)

/* Set bit j % 64 of nonzeros[j / 64] for each column j of a dense row in which x[j] is not 0, and no other bits. */
void find_nonzeros_double(const double *x, ptrdiff_t width, uint64_t *nonzeros);
void find_nonzeros_float(const float *x, ptrdiff_t width, uint64_t *nonzeros);

/* The loop for the types of the row and of the vectors. */
#define LANES(LOOP, x, w)                                                                                              \
    _Generic(*(x),                                                                                                     \
        double: lane_##LOOP##_double,                                                                                  \
        float: _Generic(*(w), double: lane_##LOOP##_wide, float: lane_##LOOP##_float))
#define lane_dots(x, w, width, n_lanes, out) LANES(dots, x, w)(x, w, width, n_lanes, out)
#define lane_two_dots(x, w, width, n_lanes, out) LANES(two_dots, x, w)(x, w, width, n_lanes, out)
#define lane_add(x, c, w, width, n_lanes) LANES(add, x, w)(x, c, w, width, n_lanes)
#define lane_steps(x, c, w, next, width, n_lanes, out) LANES(steps, x, w)(x, c, w, next, width, n_lanes, out)
#define lane_dots_sparse(x, columns, n, next, n_next, w, n_lanes, room, out)                                           \
    LANES(dots_sparse, x, w)(x, columns, n, next, n_next, w, n_lanes, room, out)
#define lane_add_sparse(x, columns, n, c, w, n_lanes, blocks, n_blocks, check)                                         \
    LANES(add_sparse, x, w)(x, columns, n, c, w, n_lanes, blocks, n_blocks, check)
#define lane_dots_nonzeros(x, nonzeros, width, w, n_lanes, out)                                                        \
    LANES(dots_nonzeros, x, w)(x, nonzeros, width, w, n_lanes, out)
#define lane_add_nonzeros(x, nonzeros, width, c, w, n_lanes, check)                                                    \
    LANES(add_nonzeros, x, w)(x, nonzeros, width, c, w, n_lanes, check)
#define find_nonzeros(x, width, nonzeros) OF_TYPE(find_nonzeros, x)(x, width, nonzeros)

#endif
