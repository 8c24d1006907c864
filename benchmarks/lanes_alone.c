/* The dense loops over lanes, alone: 32 lanes of float64, 56 columns, weights in the first-level cache.
 *
 *     gcc -O3 -ffp-contract=off -I optuna_treecv/_kernels benchmarks/lanes_alone.c -o lanes && ./lanes
 *
 * It prints the best of 40 rounds over 2,048 rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "lane_loops.c"

enum { ROWS = 2048, WIDTH = 56, LANES_USED = 32, ROUNDS = 40 };

static double now(void)
{
    struct timespec at;
    timespec_get(&at, TIME_UTC);
    return 1e9 * (double)at.tv_sec + (double)at.tv_nsec;
}

#define TIME(name, each, ...)                                                                                          \
    {                                                                                                                  \
        double best = 1e300;                                                                                           \
        for (int round = 0; round < ROUNDS; round++) {                                                                 \
            double began = now();                                                                                      \
            for (int row = 0; row + 1 < ROWS; row += each) {                                                           \
                const double *x = X + row * WIDTH;                                                                     \
                __VA_ARGS__;                                                                                           \
            }                                                                                                          \
            double took = (now() - began) / ((ROWS - 1.0) * LANES_USED);                                               \
            best = took < best ? took : best;                                                                          \
        }                                                                                                              \
        printf("%s: %.2f ns per row and lane\n", name, best);                                                          \
    }

int main(void)
{
    static _Alignas(64) double X[ROWS * WIDTH], w[WIDTH * LANES_USED], c[LANES_USED], out[2 * LANES_USED];
    for (int i = 0; i < ROWS * WIDTH; i++)
        X[i] = rand() % 1000 / 1000.0;
    for (int lane = 0; lane < LANES_USED; lane++)
        c[lane] = 1e-9 * lane;
    TIME("product", 1, lane_dots_double(x, w, WIDTH, LANES_USED, out))
    TIME("products of two rows", 2, lane_two_dots_double(x, w, WIDTH, LANES_USED, out))
    TIME("adding", 1, lane_add_double(x, c, w, WIDTH, LANES_USED))
    TIME("one after the other", 1, lane_add_double(x, c, w, WIDTH, LANES_USED);
         lane_dots_double(x + WIDTH, w, WIDTH, LANES_USED, out))
    TIME("together", 1, lane_steps_double(x, c, w, x + WIDTH, WIDTH, LANES_USED, out))
    return out[1] > 1e30;
}
