"""Decision trees on bins, grown for all folds together.

* ``estimators``: ``HistTreeClassifier`` and ``HistTreeRegressor``.
* ``forest``: the trees of all folds, from sums of integers, and what they answer.
"""
