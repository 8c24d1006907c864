"""Incremental models: the tree over the folds, and trainings without it."""
