"""Models that are computed from sums over rows: one reading of the rows serves all folds."""
