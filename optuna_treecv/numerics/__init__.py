"""Numerics of several engines: sums over rows, blocks of rows, one thread of BLAS."""
