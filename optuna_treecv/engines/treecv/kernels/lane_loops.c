/* The loops over the lanes of one row, declared in lane_loops.h.
 * The eight sums of a vector of lanes stay in registers only if the vector is no wider than a register. So these loops
 * are defined once per register width and chosen at run time, whereas the compiler clones the loops of vec8.h. */
#include "lane_loops.h"
#include "vec8.h"

/* Adding a row prefetches its weights this many nonzeros ahead, from the second-level cache: the dot product has left
 * them there. */
#define ADDED_AHEAD 16
#define FETCH(p, n_lanes)                                                                                              \
    for (const char *line = (const char *)(p); line < (const char *)((p) + (n_lanes)); line += 64)                     \
        PREFETCH(line);

#ifdef VECTOR_TYPES
#define VECTOR(T, SET, BYTES)                                                                                          \
    typedef T V_##T##_##SET __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
#else
#define VECTOR(T, SET, BYTES) typedef T V_##T##_##SET;
#endif

#ifdef HAS_DISPATCH
#define IN_REGISTER(v) __asm__("" : "+v"(v)); /* GCC would load it for each use */
#else
#define IN_REGISTER(v)
#endif

#define AT(V, p) (*(V *)(p))
#define OF(V, p) (*(const V *)(p))

#define DEFINE_LANES(NAME, X, W, SET, TARGET, V, STEP)                                                                 \
    TARGET static void dots_##NAME##_##SET(const X *x, const W *w, ptrdiff_t width, ptrdiff_t n_lanes, W *out)         \
    {                                                                                                                  \
        ptrdiff_t l = 0;                                                                                               \
        for (; sizeof(V) == 64 && l + 2 * STEP <= n_lanes; l += 2 * STEP) {                                            \
            V s[8] = {{0}}, r[8] = {{0}};                                                                              \
            for (ptrdiff_t j = 0; j < width; j += 8)                                                                   \
                _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)                                                    \
                {                                                                                                      \
                    V x8 = (W)x[j + i] - (V){0};                                                                       \
                    s[i] += OF(V, w + (j + i) * n_lanes + l) * x8;                                                     \
                    r[i] += OF(V, w + (j + i) * n_lanes + l + STEP) * x8;                                              \
                }                                                                                                      \
            AT(V, out + l) = SUM8(s);                                                                                  \
            AT(V, out + l + STEP) = SUM8(r);                                                                           \
        }                                                                                                              \
        for (; l < n_lanes; l += STEP) {                                                                               \
            V s[8] = {{0}};                                                                                            \
            for (ptrdiff_t j = 0; j < width; j += 8)                                                                   \
                _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)                                                    \
                    s[i] += OF(V, w + (j + i) * n_lanes + l) * (W)x[j + i];                                            \
            AT(V, out + l) = SUM8(s);                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET static void two_dots_##NAME##_##SET(const X *x, const W *w, ptrdiff_t width, ptrdiff_t n_lanes, W *out)     \
    {                                                                                                                  \
        if (sizeof(V) < 64) { /* too few registers for 16 sums */                                                      \
            dots_##NAME##_##SET(x, w, width, n_lanes, out);                                                            \
            dots_##NAME##_##SET(x + width, w, width, n_lanes, out + n_lanes);                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (ptrdiff_t l = 0; l < n_lanes; l += STEP) {                                                                \
            V s[8] = {{0}}, r[8] = {{0}};                                                                              \
            for (ptrdiff_t j = 0; j < width; j += 8)                                                                   \
                _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)                                                    \
                {                                                                                                      \
                    V of = OF(V, w + (j + i) * n_lanes + l);                                                           \
                    IN_REGISTER(of)                                                                                    \
                    s[i] += of * (W)x[j + i];                                                                          \
                    r[i] += of * (W)x[width + j + i];                                                                  \
                }                                                                                                      \
            AT(V, out + l) = SUM8(s);                                                                                  \
            AT(V, out + n_lanes + l) = SUM8(r);                                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET static void add_##NAME##_##SET(const X *x, const W *c, W *w, ptrdiff_t width, ptrdiff_t n_lanes)            \
    {                                                                                                                  \
        for (ptrdiff_t l = 0; l < n_lanes; l += STEP) {                                                                \
            V v = OF(V, c + l);                                                                                        \
            for (ptrdiff_t j = 0; j < width; j++)                                                                      \
                AT(V, w + j * n_lanes + l) += v * (W)x[j];                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET static void steps_##NAME##_##SET(const X *x, const W *c, W *w, const X *next, ptrdiff_t width,              \
                                            ptrdiff_t n_lanes, W *out)                                                 \
    {                                                                                                                  \
        for (ptrdiff_t l = 0; l < n_lanes; l += STEP) {                                                                \
            V v = OF(V, c + l), s[8] = {{0}};                                                                          \
            for (ptrdiff_t j = 0; j < width; j += 8)                                                                   \
                _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)                                                    \
                {                                                                                                      \
                    V of = OF(V, w + (j + i) * n_lanes + l) + v * (W)x[j + i];                                         \
                    AT(V, w + (j + i) * n_lanes + l) = of;                                                             \
                    s[i] += of * (W)next[j + i];                                                                       \
                }                                                                                                      \
            AT(V, out + l) = SUM8(s);                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET static void dots_sparse_##NAME##_##SET(const X *x, const int32_t *columns, ptrdiff_t n,                     \
                                                  const int32_t *next, ptrdiff_t n_next, const W *w,                   \
                                                  ptrdiff_t n_lanes, W *room, W *out)                                  \
    {                                                                                                                  \
        for (ptrdiff_t l = 0; l < 8 * n_lanes; l++)                                                                    \
            room[l] = 0;                                                                                               \
        ptrdiff_t ahead = n < NONZEROS_AHEAD ? n : NONZEROS_AHEAD;                                                     \
        for (ptrdiff_t i = 0; i < n; i++) {                                                                            \
            if (i + ahead < n)                                                                                         \
                FETCH(w + columns[i + ahead] * n_lanes, n_lanes)                                                       \
            else if (i + ahead - n < n_next)                                                                           \
                FETCH(w + next[i + ahead - n] * n_lanes, n_lanes)                                                      \
            W *s = room + (columns[i] & 7) * n_lanes;                                                                  \
            const W *of = w + columns[i] * n_lanes;                                                                    \
            ptrdiff_t l = 0;                                                                                           \
            for (; l + 4 * STEP <= n_lanes; l += 4 * STEP)                                                             \
                _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++)                                                    \
                    AT(V, s + l + k * STEP) += OF(V, of + l + k * STEP) * (W)x[i];                                     \
            for (; l < n_lanes; l += STEP)                                                                             \
                AT(V, s + l) += OF(V, of + l) * (W)x[i];                                                               \
        }                                                                                                              \
        for (ptrdiff_t l = 0; l < n_lanes; l++) {                                                                      \
            W s[8] = {room[l],                                                                                         \
                      room[n_lanes + l],                                                                               \
                      room[2 * n_lanes + l],                                                                           \
                      room[3 * n_lanes + l],                                                                           \
                      room[4 * n_lanes + l],                                                                           \
                      room[5 * n_lanes + l],                                                                           \
                      room[6 * n_lanes + l],                                                                           \
                      room[7 * n_lanes + l]};                                                                          \
            out[l] = SUM8(s);                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET static void add_sparse_##NAME##_##SET(const X *x, const int32_t *columns, ptrdiff_t n, const W *c, W *w,    \
                                                 ptrdiff_t n_lanes, const ptrdiff_t *blocks, ptrdiff_t n_blocks,       \
                                                 double *check)                                                        \
    {                                                                                                                  \
        W room[LANE_BYTES / sizeof(W)];                                                                                \
        for (ptrdiff_t b = 0; b < n_blocks; b++)                                                                       \
            for (ptrdiff_t l = blocks[b]; l < blocks[b] + LANE_BYTES / (ptrdiff_t)sizeof(W); l += STEP) {              \
                V v = OF(V, c + l), s = {0};                                                                           \
                for (ptrdiff_t i = 0; i < n; i++) {                                                                    \
                    if (i + ADDED_AHEAD < n)                                                                           \
                        PREFETCH(w + columns[i + ADDED_AHEAD] * n_lanes + l);                                          \
                    V of = OF(V, w + columns[i] * n_lanes + l) + v * (W)x[i];                                          \
                    AT(V, w + columns[i] * n_lanes + l) = of;                                                          \
                    s += of * 0;                                                                                       \
                }                                                                                                      \
                AT(V, room) = s;                                                                                       \
                for (ptrdiff_t k = 0; k < STEP; k++)                                                                   \
                    check[l + k] += (double)room[k];                                                                   \
            }                                                                                                          \
    }

#define STEP(V, W) ((ptrdiff_t)(sizeof(V) / sizeof(W)))

#define DEFINE_SET(SET, TARGET, BYTES)                                                                                 \
    VECTOR(double, SET, BYTES)                                                                                         \
    VECTOR(float, SET, BYTES)                                                                                          \
    DEFINE_LANES(double, double, double, SET, TARGET, V_double_##SET, STEP(V_double_##SET, double))                    \
    DEFINE_LANES(float, float, float, SET, TARGET, V_float_##SET, STEP(V_float_##SET, float))                          \
    DEFINE_LANES(wide, float, double, SET, TARGET, V_double_##SET, STEP(V_double_##SET, double))

DEFINE_SET(baseline, , 16)
#ifdef HAS_DISPATCH
DEFINE_SET(v3, __attribute__((target("arch=x86-64-v3"))), 32)
DEFINE_SET(v4, __attribute__((target("arch=x86-64-v4,prefer-vector-width=512"))), 64)
#define CALL(LOOP, NAME, ...)                                                                                          \
    if (HAS_AVX512)                                                                                                    \
        LOOP##_##NAME##_v4(__VA_ARGS__);                                                                               \
    else if (__builtin_cpu_supports("x86-64-v3"))                                                                      \
        LOOP##_##NAME##_v3(__VA_ARGS__);                                                                               \
    else                                                                                                               \
        LOOP##_##NAME##_baseline(__VA_ARGS__);
#else
#define CALL(LOOP, NAME, ...) LOOP##_##NAME##_baseline(__VA_ARGS__);
#endif

#define DEFINE_CALLS(NAME, X, W)                                                                                       \
    void lane_dots_##NAME(const X *x, const W *w, ptrdiff_t width, ptrdiff_t n_lanes, W *out)                          \
    {                                                                                                                  \
        CALL(dots, NAME, x, w, width, n_lanes, out)                                                                    \
    }                                                                                                                  \
    void lane_two_dots_##NAME(const X *x, const W *w, ptrdiff_t width, ptrdiff_t n_lanes, W *out)                      \
    {                                                                                                                  \
        CALL(two_dots, NAME, x, w, width, n_lanes, out)                                                                \
    }                                                                                                                  \
    void lane_add_##NAME(const X *x, const W *c, W *w, ptrdiff_t width, ptrdiff_t n_lanes)                             \
    {                                                                                                                  \
        CALL(add, NAME, x, c, w, width, n_lanes)                                                                       \
    }                                                                                                                  \
    void lane_steps_##NAME(const X *x, const W *c, W *w, const X *next, ptrdiff_t width, ptrdiff_t n_lanes, W *out)    \
    {                                                                                                                  \
        CALL(steps, NAME, x, c, w, next, width, n_lanes, out)                                                          \
    }                                                                                                                  \
    void lane_dots_sparse_##NAME(                                                                                      \
        const X *x, const int32_t *columns, ptrdiff_t n, const int32_t *next, ptrdiff_t n_next, const W *w,            \
        ptrdiff_t n_lanes, W *room, W *out)                                                                            \
    {                                                                                                                  \
        CALL(dots_sparse, NAME, x, columns, n, next, n_next, w, n_lanes, room, out)                                    \
    }                                                                                                                  \
    void lane_add_sparse_##NAME(const X *x, const int32_t *columns, ptrdiff_t n, const W *c, W *w, ptrdiff_t n_lanes,  \
                                const ptrdiff_t *blocks, ptrdiff_t n_blocks, double *check)                            \
    {                                                                                                                  \
        CALL(add_sparse, NAME, x, columns, n, c, w, n_lanes, blocks, n_blocks, check)                                  \
    }

DEFINE_CALLS(double, double, double)
DEFINE_CALLS(float, float, float)
DEFINE_CALLS(wide, float, double)
