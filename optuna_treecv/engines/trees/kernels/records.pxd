"""One node of one tree, as ``forest.pyx`` writes it."""

from libc.stdint cimport int16_t
from libc.stdint cimport int32_t
from libc.stdint cimport uint8_t


cdef packed struct Record:
    double decrease             # of impurity by the split, over all training rows of the tree
    int32_t left                # record of the child; -1: a leaf
    int32_t right
    int32_t feature
    int32_t left_set            # number of the set of categories that go left; -1: a threshold
    int32_t n_rows              # training rows of a weight above 0
    int32_t depth
    int16_t tree
    uint8_t bin                 # bins up to this one go left
    uint8_t missing_left
    int32_t parent              # record; -1: a root
    int32_t node                # the same number for all trees that are together here


# A node is split if its decrease plus this is at least min_impurity_decrease, as in scikit-learn.
cdef inline double epsilon() noexcept nogil:
    return 2.220446049250313e-16
