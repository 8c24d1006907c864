/* Function multiversioning: one source, one machine-code clone for each level of x86-64, the best one chosen
 * when the module is loaded. Mark the loop over a block of rows with `dispatched`, and the functions that it calls
 * with `inlined`. A loop over sparse rows takes one number at a time, so it has no clone for the widest vectors
 * (`dispatched_sparse`). The clones agree bit for bit: vec8.h fixes the order of every sum, and -ffp-contract=off is set.
 * The plain build is used with musl (it has no ifunc), with Clang (its clones do not link everywhere) and with GCC
 * below 12 (it does not know these levels). */
#ifndef OPTUNA_TREECV_DISPATCH_H
#define OPTUNA_TREECV_DISPATCH_H

#include <limits.h> /* defines __GLIBC__ where the C library is glibc */

#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12 && !defined(__clang__) && !defined(NO_DISPATCH)
#define HAS_DISPATCH
#ifdef NO_AVX512 /* CFLAGS=-DNO_AVX512: to time on any machine what those without AVX-512 run */
#define DISPATCHED __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define DISPATCHED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#define DISPATCHED_SPARSE __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define DISPATCHED
#define DISPATCHED_SPARSE
#endif

#if defined(HAS_DISPATCH) && !defined(NO_AVX512)
#define HAS_AVX512 __builtin_cpu_supports("x86-64-v4")
#else
#define HAS_AVX512 0
#endif

/* Code that a loop seldom runs is marked `seldom` and stays a function: the loop is faster, and compiles sooner. */
#if defined(__GNUC__)
#define INLINED inline __attribute__((always_inline))
// Functions in .pxd files must be declared inline, which GCC reports as contradicting noinline.
#pragma GCC diagnostic ignored "-Wattributes"
#define SELDOM __attribute__((noinline))
#define PREFETCH(address) __builtin_prefetch(address)
#define PREFETCH_FAR(address) __builtin_prefetch(address, 0, 2) /* into the second-level cache */
#define COUNT_ZEROS(bits) __builtin_ctzll(bits) /* below the lowest bit that is set */
#else
#define INLINED inline
#define SELDOM
static inline int COUNT_ZEROS(unsigned long long bits)
{
    int n = 0;
    for (; !(bits & 1); bits >>= 1)
        n++;
    return n;
}
#define PREFETCH(address) ((void)(address))
#define PREFETCH_FAR(address) ((void)(address))
#endif

#endif
