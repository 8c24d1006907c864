"""Generalised linear models of all folds and penalties, solved jointly by Newton's method.

``terms.py`` has the losses, ``objective.py`` sums them over rows, ``solver.py`` minimises the
sums, and ``engine.py`` connects them to scikit-learn's estimators.
"""
