"""Precomputed moments of blocks of dense rows, from which the moments of a training phase are merged."""

import numpy as np

from libc.string cimport memcpy

from optuna_treecv._kernels.vec8 cimport dispatched
from optuna_treecv._kernels.vec8 cimport prefetch_bytes


cdef inlined block_of_rows(
    const floating *X,
    Py_ssize_t width,
    Py_ssize_t start,
    bint imputes,
    double *block,              # OUT: mean, M2 and, if values may be missing, n_known, (width,) each
) noexcept nogil:
    """Compute the moments of the rows start..start+BLOCK-1."""
    cdef Py_ssize_t j
    if not imputes:
        for j in range(width):
            block[j] = block[width + j] = 0
        merge_rows(X, width, Span(start, start + BLOCK, NULL), 0, block, block + width)
        return
    for j in range(0, width, 8):
        known8(X + j, width, start, start + BLOCK, NULL, block + 2 * width + j, block + j, block + width + j)


cdef dispatched fill_blocks(
    const void *X, Py_ssize_t itemsize, Py_ssize_t n_rows, Py_ssize_t width, bint imputes, double *blocks
) noexcept nogil:
    """Compute the moments of each full block of BLOCK rows, then merge pairs of blocks, level by level."""
    cdef Py_ssize_t block_size = (3 if imputes else 2) * width
    cdef Py_ssize_t n_blocks = n_rows // BLOCK
    cdef Py_ssize_t rows_of_block = BLOCK
    cdef Py_ssize_t i, j
    cdef double *below
    for i in range(n_blocks):
        if i + 1 < n_blocks:                        # columns are read with a large stride: the CPU prefetches too late
            prefetch_bytes(<const unsigned char *> X + (i + 1) * BLOCK * width * itemsize, BLOCK * width * itemsize)
        if itemsize == 8:
            block_of_rows(<const double *> X, width, i * BLOCK, imputes, blocks)
        else:
            block_of_rows(<const float *> X, width, i * BLOCK, imputes, blocks)
        blocks += block_size
    below = blocks - n_blocks * block_size
    while n_blocks > 1:
        n_blocks //= 2
        for _ in range(n_blocks):
            memcpy(blocks, below, block_size * sizeof(double))
            below += block_size
            if imputes:
                for j in range(width):
                    merge_known(
                        below[2 * width + j],
                        below[j],
                        below[width + j],
                        blocks + 2 * width + j,
                        blocks + j,
                        blocks + width + j,
                    )
            else:
                merge(
                    <double> rows_of_block, <double> rows_of_block, below, below + width, width, blocks, blocks + width
                )
            below += block_size
            blocks += block_size
        below = blocks - n_blocks * block_size
        rows_of_block *= 2


cdef class Blocks:
    """The moments of each block of BLOCK dense rows, of each pair of such blocks, of each pair of pairs, and so on.

    All models that are trained on these rows share the moments, which take less than a tenth of the memory of the
    rows.
    """

    def __init__(
        self,
        X: np.ndarray,                               # IN, (n_rows, multiple of 8)
        bint imputes=False,                          # whether values may be missing
        object empty=np.empty,                       # allocates an array of a given size and dtype for the moments
    ):
        cdef const unsigned char [::1] values = X.reshape(-1).view("u1")
        cdef Py_ssize_t n_rows = X.shape[0]
        cdef Py_ssize_t width = X.shape[1]
        cdef Py_ssize_t itemsize = X.dtype.itemsize
        cdef Py_ssize_t n_blocks = n_rows // BLOCK
        cdef Py_ssize_t total = 0
        self.X = X
        self.imputes = imputes
        self.n_levels = 0
        while n_blocks > 0:
            self.levels[self.n_levels] = total
            total += n_blocks
            self.n_levels += 1
            n_blocks //= 2
        self.moments = empty(max(total, 1) * (3 if imputes else 2) * width, float)
        if total > 0:
            with nogil:
                fill_blocks(&values[0], itemsize, n_rows, width, imputes, &self.moments[0])

    cdef Columns columns(self, const double [:, ::1] flags):
        """Return the rows as ``Columns``, with ``flags`` from ``pad_flags``.

        The result holds pointers into ``flags`` and into this object, so both must outlive it.
        """
        cdef Columns columns
        columns.values = <const void *> <size_t> self.X.ctypes.data
        columns.itemsize = self.X.dtype.itemsize
        columns.width = self.X.shape[1]
        columns.centred = &flags[0, 0]
        columns.scaled = &flags[1, 0]
        columns.imputes = self.imputes
        columns.blocks = &self.moments[0]
        columns.levels = &self.levels[0]
        columns.n_levels = self.n_levels
        return columns


cdef double [:, ::1] pad_flags(const unsigned char [::1] centred, const unsigned char [::1] scaled, Py_ssize_t width):
    """Return ``centred`` and ``scaled`` as the rows of a float64 array (2, width), padded with zeros."""
    cdef double [:, ::1] flags = np.zeros((2, width))
    cdef Py_ssize_t j
    if not 0 < centred.shape[0] <= width or scaled.shape[0] != centred.shape[0]:
        raise ValueError("centred and scaled must have an entry for each column.")
    for j in range(centred.shape[0]):
        flags[0, j], flags[1, j] = centred[j], scaled[j]
    return flags


cdef void fill_with_ones(void *values, Py_ssize_t n, Py_ssize_t itemsize) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        if itemsize == 8:
            (<double *> values)[j] = 1
        else:
            (<float *> values)[j] = 1
