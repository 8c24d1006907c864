"""A kernel around another one, which trains and tests it on rows that are not those stored."""

from optuna_treecv._kernels.tree cimport Kernel
from optuna_treecv._kernels.tree cimport Learner


cdef void read(const Learner *learner, const unsigned char *state, void *model) noexcept nogil:
    cdef const Learner *behind = (<const Behind *> learner.settings).learner
    behind.read(behind, state, model)


cdef class Around(Kernel):
    """The state of the kernel behind comes first in a state, and its model is the model.

    The kernel behind must have its weights (``weigh``), and is used through this one only.
    """

    cdef int stand_around(self, Kernel behind, Behind *settings, Py_ssize_t own_bytes) except -1:
        """Take over the rows and the outputs of a kernel; what the subclass does with them is set afterwards.

        ``settings`` begin the subclass's own, and ``own_bytes`` is what it holds in a state.
        """
        if behind.state_bytes == 0:
            raise ValueError("the kernel behind was not initialised.")
        self.behind = behind
        self.keep_alive = [behind]
        settings.learner = &behind.learner
        settings.y_bytes = 4 if behind.n_classes > 0 else behind.itemsize
        self.n_rows, self.n_classes, self.n_models = behind.n_rows, behind.n_classes, behind.n_models
        self.n_outputs, self.itemsize = behind.n_outputs, behind.itemsize
        self.is_weighed = True
        self.learner = behind.learner
        self.learner.settings = settings
        self.learner.read = read
        self.learner.train_both = NULL
        self.learner.tests_rows = False
        self.learner.changes = NULL
        self.learner.remember_columns = NULL
        self.set_sizes(
            behind.learner.head_bytes,
            behind.state_bytes + own_bytes - behind.learner.head_bytes,
            behind.model_bytes,
        )
        self.log_bytes = 0                              # states are copied
        return 0

    @property
    def model_type(self):
        """The type of the numbers in a model."""
        return self.behind.model_type
