/* Function multiversioning: one source, one machine-code clone for each level of x86-64, the best one chosen
 * when the module is loaded. Mark the loop over a block of rows with `dispatched`, what it calls with `inlined`.
 * The clones agree bit for bit: the order of every sum is written out in vec8.h and -ffp-contract=off is set.
 * musl has no ifunc, Clang's clones do not link everywhere and GCC below 12 does not know these levels: there the
 * plain build is used. */
#ifndef OPTUNA_TREECV_DISPATCH_H
#define OPTUNA_TREECV_DISPATCH_H

#include <limits.h> /* defines __GLIBC__ where the C library is glibc */

#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12 && !defined(__clang__) && !defined(NO_DISPATCH)
#define HAS_DISPATCH
#define DISPATCHED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DISPATCHED
#endif

/* What a loop seldom does is marked `seldom` and stays a function: the loop is faster, and compiled sooner. */
#if defined(__GNUC__)
#define INLINED inline __attribute__((always_inline))
#define SELDOM __attribute__((noinline))
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define INLINED inline
#define SELDOM
#define PREFETCH(address) ((void)(address))
#endif

#endif
