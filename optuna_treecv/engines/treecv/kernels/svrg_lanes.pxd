"""Training Streaming SVRG models in lanes."""

from optuna_treecv.engines.treecv.kernels.linear cimport LinearSettings
from optuna_treecv.engines.treecv.kernels.tree cimport Learner


cdef void set_up_lanes(Learner *learner, LinearSettings *settings) noexcept
