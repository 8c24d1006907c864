"""Cross-validation of incremental models: by a tree over the folds, or by plain passes."""
