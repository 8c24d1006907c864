"""Decision trees on binned features, grown for all folds jointly.

* ``estimators``: ``HistTreeClassifier`` and ``HistTreeRegressor``.
* ``forest``: the trees of all folds, grown from sums of integers, and their predictions.
"""
