"""The tree over the folds: its nodes, the walk over them, the protocol of a learner."""
