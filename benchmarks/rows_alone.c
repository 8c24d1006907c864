/* Rows read in random order, alone: 200,000 rows of 56 columns in float64, which are only added.
 *
 *     gcc -O3 -march=native benchmarks/rows_alone.c -o rows && ./rows
 *
 * It prints the best of 9 rounds, in ns per row, for rows that are prefetched into one of the caches, so many rows
 * ahead. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ROWS = 200000, WIDTH = 56, ROUNDS = 9, HUGE_PAGE = 1 << 21, LINE = 64 };
typedef double vector __attribute__((vector_size(64), aligned(8)));

static const double *X;
static uint32_t order[ROWS];

static double now(void)
{
    struct timespec at;
    timespec_get(&at, TIME_UTC);
    return 1e9 * (double)at.tv_sec + (double)at.tv_nsec;
}

/* __builtin_prefetch takes the number of the cache as a constant. */
#define DEFINE_SUM(NAME, CACHE)                                                                                        \
    static vector NAME(int ahead)                                                                                      \
    {                                                                                                                  \
        vector sum = {0};                                                                                              \
        for (int i = 0; i < ROWS; i++) {                                                                               \
            const char *later = (const char *)(X + (size_t)order[i + ahead < ROWS ? i + ahead : i] * WIDTH);           \
            const double *x = X + (size_t)order[i] * WIDTH;                                                            \
            for (int line = 0; ahead && line < WIDTH * 8; line += LINE)                                                \
                __builtin_prefetch(later + line, 0, CACHE);                                                            \
            for (int j = 0; j < WIDTH; j += 8)                                                                         \
                sum += *(const vector *)(x + j);                                                                       \
        }                                                                                                              \
        return sum;                                                                                                    \
    }
DEFINE_SUM(by_first, 3)
DEFINE_SUM(by_second, 2)

static void print(const char *name, vector (*sum)(int))
{
    const int aheads[] = {0, 4, 6, 8, 12, 16, 24, 48};
    printf("%-12s", name);
    for (size_t at = 0; at < sizeof(aheads) / sizeof(*aheads); at++) {
        double best = 1e300;
        for (int round = 0; round < ROUNDS; round++) {
            double began = now();
            volatile double used = sum(aheads[at])[0];
            double took = (now() - began) / ROWS;
            (void)used;
            best = took < best ? took : best;
        }
        printf("%5d: %4.1f", aheads[at], best);
    }
    printf("\n");
}

int main(void)
{
    size_t n_bytes = (sizeof(double) * ROWS * WIDTH / HUGE_PAGE + 1) * HUGE_PAGE;
    double *values = aligned_alloc(HUGE_PAGE, n_bytes);
    uint64_t drawn = 1;
    madvise(values, n_bytes, MADV_HUGEPAGE); /* as NumPy does */
    for (size_t i = 0; i < (size_t)ROWS * WIDTH; i++)
        values[i] = (double)(i % 7);
    X = values;
    for (int i = 0; i < ROWS; i++) { /* the inside-out shuffle */
        drawn = drawn * 6364136223846793005u + 1442695040888963407u;
        int j = (int)((drawn >> 33) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
    print("first cache", by_first);
    print("second cache", by_second);
    free(values);
    return 0;
}
