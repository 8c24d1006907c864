"""Decision trees on binned features, grown for all folds jointly.

* ``estimators``: ``HistTreeClassifier`` and ``HistTreeRegressor``.
* ``forest``: the trees of all folds, which are grown from integer sums, and their predictions.
* ``engine``: the plan "forest".
"""
