"""The undo log (section 4.1 of the TreeCV paper): it saves the words that training overwrites, and
restores them when the branch is done. It is cheaper than a copy for wide models of which a row
changes only a few weights.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy


# A saved word, or the mark after the saved bytes of a stretch: the stretch's address + 1 and its length.
cdef struct Entry:
    unsigned char *address      # of 8 bytes of a state
    uint64_t word               # their value before


cdef struct Log:
    Entry *entries
    Py_ssize_t n_entries
    Py_ssize_t room
    bint whole                  # the current phase has saved the whole state, so nothing is left to save


cdef inline void remember(Log *log, void *address) noexcept nogil:
    """Save the 8 bytes around ``address``, which are about to be overwritten."""
    cdef Entry *entry = log.entries + log.n_entries
    if log.whole:
        return
    entry.address = <unsigned char *> (<size_t> address & ~<size_t> 7)
    memcpy(&entry.word, entry.address, 8)
    log.n_entries += 1


cdef inline Py_ssize_t entries_of(Py_ssize_t n_bytes) noexcept nogil:
    """Return the number of entries that a stretch takes, with its mark."""
    return (n_bytes + <Py_ssize_t> sizeof(Entry) - 1) // <Py_ssize_t> sizeof(Entry) + 1


cdef inline void remember_part(Log *log, unsigned char *begin, Py_ssize_t n_bytes) noexcept nogil:
    """Save a stretch of a state; it begins at an even address and has at least 16 bytes."""
    cdef Entry *entry = log.entries + log.n_entries
    cdef Py_ssize_t n_entries = entries_of(n_bytes)
    if log.whole:
        return
    memcpy(entry, begin, n_bytes)
    entry[n_entries - 1].address = begin + 1
    entry[n_entries - 1].word = n_bytes
    log.n_entries += n_entries


cdef inline void remember_all(Log *log, unsigned char *state, Py_ssize_t n_bytes) noexcept nogil:
    """Save a whole state, which is about to be rewritten; it is saved at most once per phase."""
    remember_part(log, state, n_bytes)
    log.whole = True


cdef inline void undo(Log *log, Py_ssize_t mark) noexcept nogil:
    """Restore what was saved since the log had ``mark`` entries, the last entry first."""
    cdef Entry *entry
    while log.n_entries > mark:
        log.n_entries -= 1
        entry = log.entries + log.n_entries
        if <size_t> entry.address & 1:
            log.n_entries -= entries_of(<Py_ssize_t> entry.word) - 1
            memcpy(entry.address - 1, log.entries + log.n_entries, entry.word)
        else:
            memcpy(entry.address, &entry.word, 8)
