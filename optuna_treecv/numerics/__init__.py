"""Numerical code that several engines share: moments of rows, blocks of rows, BLAS threads."""
