"""The nearest of some rows, by products of matrices."""
