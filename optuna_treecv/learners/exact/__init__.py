"""Estimators that see their rows through additive statistics: all folds follow from one reading.

``moments`` of rows are collected and merged, ``all_but`` makes those of each fold's training rows,
and a ``family`` solves them for the models of all points and responds to the test rows:

* ridge regression: ``ridge``, with ``ridge_rows`` and ``penalties``; single rows and small chunks
  are left out of all rows in closed form by ``left_out`` and ``other_scales``;
* discriminant analysis: ``discriminants``.

``families`` is the list of them; ``chunks`` and ``threads`` serve all.
"""
