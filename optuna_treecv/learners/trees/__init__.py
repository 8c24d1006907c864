"""Decision trees on bins, grown for all folds together.

* ``estimators``: ``HistTreeClassifier`` and ``HistTreeRegressor``.
* ``forest``: the trees of all folds, and what they answer.
* ``fixed_point``: targets and weights as integers.
"""
