"""Estimators that see their rows through sums, so that all folds follow from one reading.

``blocks`` of rows become sums, ``training_sums`` merges those of each fold, a family makes a
record of them (``records``) and tests rows with the models of all points. ``family`` is the
protocol of a family and ``families`` the list of them:

* ridge regression: ``ridge``, with ``moments``, ``penalties``, ``balanced``, ``ridge_rows`` and
  ``from_rows``; without single rows or small chunks ``left_out``, with ``bases``, ``all_but`` and
  ``other_scales``;
* discriminant analysis: ``linear_discriminant`` and ``quadratic_discriminant``, with
  ``discriminants``, ``class_moments``, ``linear_left_out`` and ``graded``;
* Gaussian naive Bayes: ``gaussian_nb``, with ``class_spreads``, ``gaussian_densities`` and
  ``gaussian_nb_single_rows``;
* naive Bayes of counts: ``count_models``, with ``counts``, ``nonzeros``, ``split_sums`` and
  ``absences``.

``spread`` is what a ``StandardScaler`` learns; ``labels``, ``lapack`` and ``threads`` serve all.
"""
