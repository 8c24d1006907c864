"""The undo log of section 4.1 of the TreeCV paper, for training in place.

The log saves the words of a state that training overwrites, and restores them after the branch of the tree that needs
the trained model. This is cheaper than training a copy of the state if the model is wide and a row changes only a few
of its weights.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy


# An entry of the log is either a word or the end of a range. A word is 8 bytes of a state: their address and previous
# value. The previous bytes of a longer range fill the entries before its end, which holds the address of the range
# plus 1 and its length. An odd address therefore marks the end of a range.
cdef struct Entry:
    unsigned char *address
    uint64_t word


cdef struct Log:
    Entry *entries
    Py_ssize_t n_entries
    Py_ssize_t capacity         # the number of entries that fit into the log
    bint whole                  # whether the whole state is saved already, so that this phase need not save more


cdef inline void remember(Log *log, void *address) noexcept nogil:
    """Save the aligned word of 8 bytes that contains ``address``, before it is overwritten."""
    cdef Entry *entry = log.entries + log.n_entries
    if log.whole:
        return
    entry.address = <unsigned char *> (<size_t> address & ~<size_t> 7)
    memcpy(&entry.word, entry.address, 8)
    log.n_entries += 1


cdef inline Py_ssize_t entries_of(Py_ssize_t n_bytes) noexcept nogil:
    """Return the number of entries that a range of ``n_bytes`` takes, with its end."""
    return (n_bytes + <Py_ssize_t> sizeof(Entry) - 1) // <Py_ssize_t> sizeof(Entry) + 1


cdef inline void remember_part(Log *log, unsigned char *start, Py_ssize_t n_bytes) noexcept nogil:
    """Save a range of at least 16 bytes that starts at an even address."""
    cdef Entry *entry = log.entries + log.n_entries
    cdef Py_ssize_t n_entries = entries_of(n_bytes)
    if log.whole:
        return
    memcpy(entry, start, n_bytes)
    entry[n_entries - 1].address = start + 1
    entry[n_entries - 1].word = n_bytes
    log.n_entries += n_entries


cdef inline void remember_all(Log *log, unsigned char *state, Py_ssize_t n_bytes) noexcept nogil:
    """Save the whole state, before it is rewritten, unless this phase has saved it already."""
    remember_part(log, state, n_bytes)
    log.whole = True


cdef inline void undo(Log *log, Py_ssize_t mark) noexcept nogil:
    """Restore what was saved since the log had ``mark`` entries, starting with the last entry."""
    cdef Entry *entry
    while log.n_entries > mark:
        log.n_entries -= 1
        entry = log.entries + log.n_entries
        if <size_t> entry.address & 1:
            log.n_entries -= entries_of(<Py_ssize_t> entry.word) - 1
            memcpy(entry.address - 1, log.entries + log.n_entries, entry.word)
        else:
            memcpy(entry.address, &entry.word, 8)
