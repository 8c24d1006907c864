"""The engine that refits any estimator on each fold."""
