"""Searches for the nearest rows, by products of matrices."""
