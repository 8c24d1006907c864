"""The compiled loops. Python decides, these loop: each takes memory and numbers, holds no lock and
knows no data frame.

``vec8.h``      the one order in which products are summed; ``dispatch.h``: clones for AVX-512,
AVX2 and the baseline ``prepare``     rows permuted, padded and checked in one reading ``order``
uniformly random orders, derived from (seed, row range, rows seen) ``tree``        Algorithm 1 of
the TreeCV paper over any compiled learner ``pegasos``     the PEGASOS learner; ``sgd``: SGD on the
squared loss; ``linear``, ``losses``: what they share ``reference``   every one of them again in
plain NumPy, for the tests

Arguments are marked ``# IN``, ``# OUT`` or ``# INOUT``; what is written comes last. Comments give
the papers' equations.
"""
