cdef class Gram:
    cdef const double [:, ::1] X        # None if all rows have been computed
    cdef double [:, ::1] K
    cdef const double [::1] of_diagonal
    cdef double [::1] squares, packed
    cdef unsigned char [::1] is_computed
    cdef double gamma
    cdef void compute_rows(self, const Py_ssize_t *rows, Py_ssize_t n_rows) noexcept nogil
