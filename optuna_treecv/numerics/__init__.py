"""What several engines compute with: sums over rows, blocks of rows, one thread of BLAS."""
