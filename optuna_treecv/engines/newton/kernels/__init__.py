"""Products of sparse rows and shares of classes, for generalised linear models."""
