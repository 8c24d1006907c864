"""Rows, which are prepared once in the order of the tree, and their partition into folds."""
