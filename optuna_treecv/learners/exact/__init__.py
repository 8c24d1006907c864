"""Estimators that see their rows through sums, so that all folds follow from one reading."""
