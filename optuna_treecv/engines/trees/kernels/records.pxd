"""The record of one node of one tree."""

from libc.stdint cimport int16_t
from libc.stdint cimport int32_t
from libc.stdint cimport uint8_t


cdef packed struct Record:
    double decrease             # of impurity by the split, relative to all training rows of the tree
    int32_t left                # the record of the left child; -1 for a leaf
    int32_t right
    int32_t feature
    int32_t left_set            # the index of the set of categories that go left; -1 for a threshold
    int32_t n_rows              # training rows with a positive weight
    int32_t depth
    int16_t tree
    uint8_t bin                 # for a threshold, bins up to this one go left
    uint8_t missing_left
    int32_t parent              # the record of the parent; -1 for a root
    int32_t node                # the same number for all trees that share the node


# As in scikit-learn, a node is split if its decrease plus this is at least min_impurity_decrease.
cdef inline double epsilon() noexcept nogil:
    return 2.220446049250313e-16
