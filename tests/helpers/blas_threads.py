"""Gives each worker of a parallel run one thread of BLAS and OpenMP.

Workers already use all cores. More threads would wait for each other, which takes several times
the CPU time. To be imported before NumPy.
"""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
