"""The estimators of this package, and any others as learners that the tree can train."""
