"""Feature selection by cross-validation, from sums over rows."""
