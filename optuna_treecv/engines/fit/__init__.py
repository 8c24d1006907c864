"""Fits of each fold by the estimator itself, which serve any estimator."""
