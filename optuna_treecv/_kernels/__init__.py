"""Compiled loops for training and testing. Python decides what to do, these modules do it.

They get memory and numbers, hold no lock, and know neither data frames nor scikit-learn. In an
order to read them:

What all kernels are made of:

* ``vec8.h`` with ``vec8.pxd``: vectors, and the one order in which products are summed.
* ``dispatch.h``: clones of a loop for AVX-512, AVX2 and the baseline.
* ``rows``: dense and sparse rows, and what training does with one.
* ``order``: uniformly random orders, derived from (seed, row range, rows seen).
* ``prepare`` with ``row_copy.h``: rows permuted, padded and checked in one reading, or turned
  into bins.
* ``exp_log``: exp and log with the same bits on every machine. ``losses``: slopes of losses.
* ``row_weight``: the weights of rows, and the balance of classes.

The tree:

* ``tree``: Algorithm 1 of the TreeCV paper over any kernel, without the interpreter.
* ``kernel``: the class ``Kernel``, which Python calls.
* ``undo``: the undo log for sparse rows.

Kernels. The mathematics of each is in the ``.pxd`` file of its name, or in the ``.pyx`` file if
there is only that:

* ``linear``: the base of ``pegasos``, ``sgd`` and ``svrg``.
* ``kmeans`` and ``gaussian``.
* ``scaled``: any kernel, behind the running means and scales (``moments``) of its rows.
* ``lanes`` and ``lane_loops``: many linear models over the same rows at once. ``pegasos_lanes``,
  ``sgd_lanes`` and ``svrg_lanes`` train them.
* Decision trees on bins, those of all folds grown together. ``forest`` goes over the nodes
  (``forest_nodes``), fills their tables (``forest_tables``), searches them for splits
  (``forest_search``, with ``split_search`` for one tree) and writes ``records``. ``pruning``
  answers narrower limits from the records.
* ``*_by_type.pxi``: included by kernels to choose their loops by the layout and type of the rows.

Beside the tree:

* ``glm``: products of sparse rows and shares of classes, for generalised linear models.
* ``nearest``: the nearest of some rows, by products of matrices.
* ``lapack``: routines that let other threads run meanwhile.

``tests/reference.py`` has each kernel again in simple NumPy.

Arguments are marked ``# IN``, ``# OUT`` or ``# INOUT``; outputs come last. Comments give the
papers' equations.
"""

from importlib.util import find_spec

if find_spec(f"{__name__}.tree") is None:
    raise ImportError(
        "optuna_treecv was imported from its source folder, where its kernels are not compiled: "
        "run 'python -m pip install -e . --no-build-isolation' in the checkout, or start Python "
        "in another folder (for tests 'pytest' in place of 'python -m pytest')."
    )

#: The number of the kernel format, which is part of every stored model's key. Raise it whenever
#: the bytes or the meaning of any kernel's state change, so that no program takes a state that it
#: would misunderstand. ``tests/test_golden_states.py`` notices such a change.
FORMAT = 7
