"""The compiled loops. Python decides and these loop: each kernel gets memory and numbers, holds no
lock and knows no data frame. In an order to read them:

What all kernels are made of:

* ``vec8.h`` and its door ``vec8.pxd``: vectors, and the one order in which products are summed.
* ``dispatch.h``: clones of a loop for AVX-512, AVX2 and the baseline.
* ``rows``: dense and sparse rows, and what training does with one.
* ``order``: uniformly random orders, derived from (seed, row range, rows seen).
* ``prepare``: rows permuted, padded and checked in one reading.
* ``elementary``: exp and log with the same bits on every machine; ``losses``: slopes of losses.

The tree:

* ``tree``: the class ``Kernel``, and Algorithm 1 of the TreeCV paper over any kernel.
* ``undo`` and ``columns``: the undo log for sparse rows.

Kernels, the mathematics of each in the file of its name:

* ``linear``: what linear models share; ``pegasos``, ``sgd``, ``svrg`` (with ``stages``), ``root``.
* ``kmeans`` and ``gaussian``.
* ``lanes`` and ``lane_loops``: many linear models over the same rows at once; ``pegasos_lanes``,
  ``sgd_lanes`` and ``svrg_lanes`` are the lanes of these kernels.

For the tests, ``reference`` has each of them again in plain NumPy.

Arguments are marked ``# IN``, ``# OUT`` or ``# INOUT``; what is written comes last. Comments give
the papers' equations.
"""

from importlib.util import find_spec

if find_spec(f"{__name__}.tree") is None:
    raise ImportError(
        "optuna_treecv was imported from its source folder, where its kernels are not compiled: "
        "run 'python -m pip install -e . --no-build-isolation' in the checkout, or start Python "
        "in another folder (for tests 'pytest' in place of 'python -m pytest')."
    )

#: Names what the bytes of a state mean. Raise it whenever the bytes or the meaning of any kernel's
#: state change, so that no program takes a state that it would misunderstand;
#: ``tests/test_golden_states.py`` notices such a change.
FORMAT = 1
