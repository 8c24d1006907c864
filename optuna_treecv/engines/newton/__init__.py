"""Generalised linear models of all folds and penalties, solved together by Newton's method.

``terms.py`` has what the models minimise, ``solver.py`` minimises it, and ``engine.py`` binds both
to scikit-learn's estimators.
"""
