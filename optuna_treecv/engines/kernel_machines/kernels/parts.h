/* Loops over eight numbers at a time, in parts of the width of a vector register (vec8.h). */
#ifndef OPTUNA_TREECV_PARTS_H
#define OPTUNA_TREECV_PARTS_H

#include "vec8.h"

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

#endif
