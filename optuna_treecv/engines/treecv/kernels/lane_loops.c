/* The loops over the lanes of one row, declared in lane_loops.h.
 * The eight sums of a vector of lanes stay in registers only if the vector is no wider than a register. So these loops
 * are defined once per register width and chosen at run time, whereas the compiler clones the loops of vec8.h. */
#include "lane_loops.h"

#ifdef HAS_DISPATCH
#include <immintrin.h>
#endif

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
/* GCC would hold a pointer to each vector, and add to all of them. */
#define ONE_POINTER(p)                                                                                                 \
    ({                                                                                                                 \
        __auto_type held = (p);                                                                                        \
        __asm__("" : "+r"(held));                                                                                      \
        held;                                                                                                          \
    })
#else
#define IN_REGISTER(v)
#define ONE_POINTER(p) (p)
#endif

#define AT(V, p) (*(V *)(p))
#define OF(V, p) (*(const V *)(p))

/* For each column j in the bit set `nonzeros` that is also in `mask`, 64 columns at a time, in ascending order. */
#define EACH_NONZERO(j, mask)                                                                                          \
    for (ptrdiff_t word = 0; 64 * word < width; word++)                                                                \
        for (uint64_t left = nonzeros[word] & (mask); left != 0; left &= left - 1)                                     \
            for (ptrdiff_t j = 64 * word + COUNT_ZEROS(left), once = 1; once; once = 0)

#define EACH_VECTOR _Pragma("GCC unroll 8") for (int k = 0; k < K; k++)

/* The sum of the partial sums i and i + 4. */
#define SUM_OF_TWO(V, NAME, i, INTO)                                                                                   \
    {                                                                                                                  \
        V s[8] = {{0}}, r[8] = {{0}};                                                                                  \
        partial_sums_##NAME(x, nonzeros, width, w, n_lanes, i, s, K);                                                  \
        partial_sums_##NAME(x, nonzeros, width, w, n_lanes, i + 4, r, K);                                              \
        EACH_VECTOR INTO s[k] + r[k];                                                                                  \
    }

/* LOOP for eight vectors of lanes at a time, or fewer at the end, so that each nonzero is found as seldom as possible. */
#define BY_EIGHT_VECTORS(LOOP, STEP, ...)                                                                              \
    ptrdiff_t l = 0;                                                                                                   \
    for (; l + 8 * STEP <= n_lanes; l += 8 * STEP)                                                                     \
        LOOP(__VA_ARGS__, 8);                                                                                          \
    for (; l + 4 * STEP <= n_lanes; l += 4 * STEP)                                                                     \
        LOOP(__VA_ARGS__, 4);                                                                                          \
    for (; l < n_lanes; l += STEP)                                                                                     \
        LOOP(__VA_ARGS__, 1);

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
    }                                                                                                                  \
    /* The products of K vectors of lanes. Partial sum i stays in registers, because its columns are read in a row. */ \
    TARGET static INLINED void partial_sums_##NAME##_##SET(const X *x, const uint64_t *nonzeros, ptrdiff_t width,      \
                                                           const W *w, ptrdiff_t n_lanes, int i, V *s, const int K)    \
    {                                                                                                                  \
        EACH_NONZERO(j, UINT64_C(0x0101010101010101) << i)                                                             \
        {                                                                                                              \
            V xj = (W)x[j] - (V){0};                                                                                   \
            const W *of = ONE_POINTER(w + j * n_lanes);                                                                \
            EACH_VECTOR s[k] += OF(V, of + k * STEP) * xj;                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET static INLINED void some_dots_##NAME##_##SET(const X *x, const uint64_t *nonzeros, ptrdiff_t width,         \
                                                        const W *w, ptrdiff_t n_lanes, W *out, const int K)            \
    {                                                                                                                  \
        V even[8], odd[8]; /* SUM8, as soon as two partial sums are known */                                           \
        SUM_OF_TWO(V, NAME##_##SET, 0, even[k] =)                                                                      \
        SUM_OF_TWO(V, NAME##_##SET, 2, even[k] +=)                                                                     \
        SUM_OF_TWO(V, NAME##_##SET, 1, odd[k] =)                                                                       \
        SUM_OF_TWO(V, NAME##_##SET, 3, odd[k] +=)                                                                      \
        EACH_VECTOR AT(V, out + k * STEP) = even[k] + odd[k];                                                          \
    }                                                                                                                  \
    TARGET static void dots_nonzeros_##NAME##_##SET(const X *x, const uint64_t *nonzeros, ptrdiff_t width, const W *w, \
                                                    ptrdiff_t n_lanes, W *out)                                         \
    {                                                                                                                  \
        BY_EIGHT_VECTORS(some_dots_##NAME##_##SET, STEP, x, nonzeros, width, w + l, n_lanes, out + l)                  \
    }                                                                                                                  \
    /* A sum of new weights is finite if all of them are, unless it overflows. So each of them is looked at only if a  \
     * sum is not finite. */                                                                                           \
    TARGET static INLINED int some_adds_##NAME##_##SET(const X *x, const uint64_t *nonzeros, ptrdiff_t width,          \
                                                       const W *c, W *w, ptrdiff_t n_lanes, double *check,             \
                                                       const int K)                                                    \
    {                                                                                                                  \
        V v[8], sums[4] = {{0}}; /* four sums, because there are not enough registers for more */                      \
        W room[STEP];                                                                                                  \
        double seen = 0;                                                                                               \
        EACH_VECTOR                                                                                                    \
        {                                                                                                              \
            v[k] = OF(V, c + k * STEP);                                                                                \
            sums[k % 4] += v[k] * 0;                                                                                   \
        }                                                                                                              \
        EACH_NONZERO(j, ~UINT64_C(0))                                                                                  \
        {                                                                                                              \
            V xj = (W)x[j] - (V){0};                                                                                   \
            W *at = ONE_POINTER(w + j * n_lanes);                                                                      \
            EACH_VECTOR                                                                                                \
            {                                                                                                          \
                V of = OF(V, at + k * STEP) + v[k] * xj;                                                               \
                AT(V, at + k * STEP) = of;                                                                             \
                sums[k % 4] += of;                                                                                     \
            }                                                                                                          \
        }                                                                                                              \
        AT(V, room) = (sums[0] * 0 + sums[1] * 0) + (sums[2] * 0 + sums[3] * 0);                                       \
        for (ptrdiff_t l = 0; l < STEP; l++)                                                                           \
            seen += (double)room[l];                                                                                   \
        if (seen == 0)                                                                                                 \
            return 0;                                                                                                  \
        for (ptrdiff_t l = 0; l < K * STEP; l++)                                                                       \
            check[l] += 0 * (double)c[l];                                                                              \
        EACH_NONZERO(j, ~UINT64_C(0))                                                                                  \
        for (ptrdiff_t l = 0; l < K * STEP; l++)                                                                       \
            check[l] += 0 * (double)w[j * n_lanes + l];                                                                \
        return 1;                                                                                                      \
    }                                                                                                                  \
    TARGET static int add_nonzeros_##NAME##_##SET(const X *x, const uint64_t *nonzeros, ptrdiff_t width, const W *c,   \
                                                  W *w, ptrdiff_t n_lanes, double *check)                              \
    {                                                                                                                  \
        int looked = 0;                                                                                                \
        BY_EIGHT_VECTORS(looked |= some_adds_##NAME##_##SET, STEP, x, nonzeros, width, c + l, w + l, n_lanes,          \
                         check + l)                                                                                    \
        return looked;                                                                                                 \
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
    }                                                                                                                  \
    void lane_dots_nonzeros_##NAME(const X *x, const uint64_t *nonzeros, ptrdiff_t width, const W *w,                  \
                                   ptrdiff_t n_lanes, W *out)                                                          \
    {                                                                                                                  \
        CALL(dots_nonzeros, NAME, x, nonzeros, width, w, n_lanes, out)                                                 \
    }                                                                                                                  \
    int lane_add_nonzeros_##NAME(const X *x, const uint64_t *nonzeros, ptrdiff_t width, const W *c, W *w,              \
                                 ptrdiff_t n_lanes, double *check)                                                     \
    {                                                                                                                  \
        CALL(return add_nonzeros, NAME, x, nonzeros, width, c, w, n_lanes, check)                                      \
    }

DEFINE_CALLS(double, double, double)
DEFINE_CALLS(float, float, float)
DEFINE_CALLS(wide, float, double)

/* Eight bits at a time, which are the signs of a comparison. */
#ifdef HAS_DISPATCH
#define SIGNS_double(x)                                                                                                \
    (uint64_t)(_mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(x), _mm256_setzero_pd(), _CMP_NEQ_UQ)) |               \
               _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd((x) + 4), _mm256_setzero_pd(), _CMP_NEQ_UQ)) << 4)
#define SIGNS_float(x)                                                                                                 \
    (uint64_t) _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), _mm256_setzero_ps(), _CMP_NEQ_UQ))
#define FIND_BY_SIGNS(T)                                                                                               \
    __attribute__((target("arch=x86-64-v3"))) static void find_by_signs_##T(const T *x, ptrdiff_t width,               \
                                                                            uint64_t *nonzeros)                        \
    {                                                                                                                  \
        for (ptrdiff_t word = 0; 64 * word < width; word++) {                                                          \
            uint64_t bits = 0;                                                                                         \
            for (ptrdiff_t j = 64 * word; j < width && j < 64 * (word + 1); j += 8)                                    \
                bits |= SIGNS_##T(x + j) << j % 64;                                                                    \
            nonzeros[word] = bits;                                                                                     \
        }                                                                                                              \
    }
FIND_BY_SIGNS(double)
FIND_BY_SIGNS(float)
#define FIND(T)                                                                                                        \
    if (__builtin_cpu_supports("x86-64-v3")) {                                                                         \
        find_by_signs_##T(x, width, nonzeros);                                                                         \
        return;                                                                                                        \
    }
#else
#define FIND(T)
#endif

#define DEFINE_FIND(T)                                                                                                 \
    void find_nonzeros_##T(const T *x, ptrdiff_t width, uint64_t *nonzeros)                                            \
    {                                                                                                                  \
        FIND(T)                                                                                                        \
        for (ptrdiff_t j = 0; j < width; j++)                                                                          \
            nonzeros[j / 64] = (j % 64 ? nonzeros[j / 64] : 0) | (uint64_t)(x[j] != 0) << j % 64;                      \
    }

DEFINE_FIND(double)
DEFINE_FIND(float)
