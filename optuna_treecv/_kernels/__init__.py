"""Building blocks of the compiled loops of all engines, and loops over rows that they share.

Kernels train and test; Python decides what to do. They get memory and numbers, hold no lock, and
know neither data frames nor scikit-learn. Kernels of one engine are in its folder ``kernels``. In
reading order:

* ``vec8.h`` with ``vec8.pxd``: vectors, and the one order in which products are summed.
* ``dispatch.h``: clones of a loop for AVX-512, AVX2 and the baseline.
* ``rows``: dense and sparse rows, and the operations of training on one. ``undo``: the undo log
  for sparse rows. ``span``: some rows in an order.
* ``order``: uniformly random orders, derived from (seed, row range, rows seen).
* ``prepare`` with ``row_copy.h``: rows permuted, padded and checked in one reading, or turned
  into bins.
* ``exp_log``: exp and log with the same bits on every machine.
* ``moments``: running means and scales of the columns.
* ``lapack``: routines that let other threads run meanwhile.

``tests/helpers/reference.py`` implements each kernel again in simple NumPy.

Arguments are marked ``# IN``, ``# OUT`` or ``# INOUT``; outputs come last. Comments give the
papers' equations.
"""

from importlib.util import find_spec

if find_spec(f"{__name__}.order") is None:
    raise ImportError(
        "optuna_treecv was imported from its source folder, where its kernels are not compiled: "
        "run 'python -m pip install -e . --no-build-isolation' in the checkout, or start Python "
        "in another folder (for tests, run 'pytest' instead of 'python -m pytest')."
    )

#: The version of the kernel format, which is part of the key of every stored model. Raise it
#: whenever the bytes or the meaning of any kernel's state change, so that no program loads a state
#: that it would misread. ``tests/engines/treecv/test_golden_states.py`` detects such a change.
FORMAT = 7
