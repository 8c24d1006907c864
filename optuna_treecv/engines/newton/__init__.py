"""Generalised linear models of all folds and penalties, solved jointly by Newton's method.

``terms.py`` has the losses and ``objective.py`` their sums, ``solver.py`` minimises these, and
``engine.py`` binds them to scikit-learn's estimators.
"""
