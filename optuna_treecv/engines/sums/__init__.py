"""Estimators whose models follow from sums over rows: one reading of the rows serves all folds."""
