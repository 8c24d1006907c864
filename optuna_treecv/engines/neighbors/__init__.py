"""Nearest neighbours of all folds by one search."""
