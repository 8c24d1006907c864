"""The rows, prepared once in the order of the tree, and how they are cut into folds."""
