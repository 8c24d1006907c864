"""Finds the best split of each tree in a node; see ``forest_search.pyx``."""

from optuna_treecv.engines.trees.kernels.forest_nodes cimport Forest
from optuna_treecv.engines.trees.kernels.forest_nodes cimport Node
from optuna_treecv.engines.trees.kernels.split_search cimport Count


cdef void find_splits(Forest *forest, Node *node, Count of_type) noexcept nogil


cdef double decrease_of(Forest *forest, Node *node, Py_ssize_t member) noexcept nogil
