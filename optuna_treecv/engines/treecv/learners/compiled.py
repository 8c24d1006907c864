"""The base classes of compiled estimators, and the learners that train them along the tree."""

from abc import ABCMeta
from abc import abstractmethod
from typing import Any
from typing import cast
from typing import Self
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from sklearn.utils.validation import validate_data

from optuna_treecv._kernels.order import random_order
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.engines.treecv.kernels.kernel import Kernel
from optuna_treecv.engines.treecv.kernels.linear import LinearKernel
from optuna_treecv.engines.treecv.kernels.linear import MOST
from optuna_treecv.engines.treecv.kernels.linear import VECTOR_BYTES
from optuna_treecv.engines.treecv.kernels.scaled import Scaled
from optuna_treecv.engines.treecv.learner import Part
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import divergence_advice
from optuna_treecv.estimators.base import weights_of_rows
from optuna_treecv.preprocessing.fitted import FittedSteps
from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import check_columns
from optuna_treecv.rows.checks import check_rows
from optuna_treecv.rows.checks import in_type
from optuna_treecv.rows.checks import naming
from optuna_treecv.rows.checks import times_classes
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.memory import aligned_bytes
from optuna_treecv.rows.memory import aligned_empty
from optuna_treecv.rows.memory import pad_rows
from optuna_treecv.rows.partition import cut
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.rows.partition import Phase
from optuna_treecv.rows.partition import Rows
from optuna_treecv.rows.partition import rows_of

# fit and partial_fit copy and pad this many rows at a time, to avoid a second copy of the whole X.
_ROWS_AT_A_TIME = 4096

#: The dtypes of X that are not converted. Any other dtype is converted to the first of these.
FLOATS = [np.float64, np.float32]

#: More rows than any data can have. Kernels get at most this value of parameters that count rows.
MOST_ROWS = 2**62

#: The data of a kernel: (X, y, n_classes). y contains class codes or numeric targets, or is None
#: for unsupervised learners. n_classes is None unless y contains class codes.
KernelRows = tuple[np.ndarray | SparseRows, np.ndarray | None, int | None]


class KernelEstimator(CompiledEstimator, metaclass=ABCMeta):
    """A compiled estimator, which makes its kernel and implements ``fit`` and ``partial_fit``."""

    _state: Any  # the kernel's state, ndarray of bytes; None for an average of models
    _seed: int  # the seed of the kernel's random numbers
    # A method (X) -> the outputs that determine all predictions. Not all subclasses have it.
    _outputs: Any

    @abstractmethod
    def make_kernel(self, rows: KernelRows, lanes: list[Any] | None = None) -> Kernel:
        """Return a kernel with this estimator's parameters for padded rows.

        If ``lanes`` is given, the kernel trains one model for each of these estimators, which may
        only differ in their ``lane_parameters``.
        """

    @abstractmethod
    def _set_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        """Set the fitted attributes from a kernel's model (bytes). ``dtype`` is that of X."""

    def _settle(self, X: Any, seed: int | None) -> None:
        """Set the attributes that depend on all rows or on ``random_state``, before training.

        ``seed`` is the seed of the cross-validation, which replaces ``random_state=None``.
        """
        if self.random_state is None and seed is not None:
            self._seed = seed
        else:
            self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    # --- The learner protocol of the tree ---

    def make_learner(self, rows: PreparedRows, seed: int, before: Any = None) -> "CompiledLearner":
        return CompiledLearner(self.settled(rows.X, rows.n_features, seed), rows, before)

    def settled(self, X: Any, n_features: int, seed: int) -> Self:
        """Return an unfitted copy, with attributes that depend on all rows or on the seed set."""
        settings = clone(self)
        settings.n_features_in_ = n_features
        settings._settle(X, seed)
        return settings

    # --- scikit-learn's interface ---

    def _fit(self, X: Any, y: Any, sample_weight: Any, is_fit: bool, classes: Any = None) -> Self:
        """Train on rows that are not validated yet; the body of ``fit`` and ``partial_fit``.

        ``classes`` is the argument of a classifier's ``partial_fit``.
        """
        self.check_parameters()
        first = is_fit or not hasattr(self, "_state")
        if not first:
            self._check_unchanged()
        before = dict(vars(self))
        try:
            X, y = self._read(X, y, first, is_fit, classes)
            if first:
                self.t_, self._state = 0, None
                self._settle(X, None)
                self._trained_as = self._fixed()
            return self._train(X, y, sample_weight, is_fit)
        except BaseException:  # a failed call must leave the estimator unchanged
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    @abstractmethod
    def _read(self, X: Any, y: Any, first: bool, is_fit: bool, classes: Any) -> tuple[Any, Any]:
        """Return validated X and the targets for the kernel.

        In later calls of ``partial_fit``, X is converted to the dtype of the first call.
        """

    def _validated(self, X: Any, y: Any = "no_validation", **options: Any) -> Any:
        """Return X, or X and y, validated by this package and scikit-learn's ``validate_data``."""
        check_rows(X)
        check_columns(X)
        check_array_kind("y", y)
        with naming("X" if isinstance(y, str) else "X and y"):
            return validate_data(self, X, y, **options)

    def _fitted_rows(self, X: Any, **options: Any) -> Any:
        """Return validated rows for a prediction; float32 is not converted."""
        check_is_fitted(self)
        return self._validated(X, dtype=FLOATS, reset=False, **options)

    def _check_unchanged(self) -> None:
        """Raise if training cannot continue, because a fixed parameter has changed."""
        if self._state is None:
            raise ValueError(
                "partial_fit cannot continue the training of an average of models; call fit to "
                "start anew."
            )
        for name, value in self._fixed().items():
            if value != self._trained_as[name]:
                raise ValueError(
                    f"{name} must not change between calls of partial_fit; call fit to start anew."
                )

    def _train(self, X: Any, y: np.ndarray | None, sample_weight: Any, is_fit: bool) -> Self:
        """Train on validated X and encoded y, and set the fitted attributes."""
        weights = weights_of_rows(X, sample_weight, may_be_zero=True)
        if weights is not None:
            weights = in_type(weights, X.dtype, "sample_weight")
        class_weights = self.weights_of_classes(getattr(self, "classes_", None))
        if class_weights is not None:
            assert y is not None
            weights = times_classes(weights, class_weights, y, X.dtype)
        if is_fit and weights is not None and not np.any(weights):
            product = (
                "sample_weight" if class_weights is None else "class_weight times sample_weight"
            )
            raise ValueError(f"{product} must not be zero for all rows passed to fit.")
        n_rows = X.shape[0]
        seed = 0
        if self.shuffle:
            seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        n_epochs = int(self.n_epochs) if is_fit and self.has_epochs else 1
        order = np.arange(n_rows, dtype=np.uint32)
        n_classes = len(self.classes_) if hasattr(self, "classes_") else None
        # A copy, because training may fail, and because the state may be a read-only memory map.
        state = None if self._state is None else copy_state(self._state)
        for n_before in range(0, n_epochs * n_rows, n_rows):
            if self.shuffle:
                random_order(seed, 0, n_rows, n_before, order)
            for begin in range(0, n_rows, _ROWS_AT_A_TIME):
                part = order[begin : begin + _ROWS_AT_A_TIME]
                rows = pad_rows(X, part, self.row_layout.intercept)
                kernel = self.make_kernel((rows, None if y is None else y[part], n_classes))
                kernel.weigh(None if weights is None else weights[part], self.is_balanced)
                if state is None:
                    state = new_state(kernel)
                kernel.update(state, 0, len(part))
        assert state is not None  # there is at least one row
        self._state = state
        # The last kernel can read the model, because a state does not depend on the kernel's rows.
        model = read_model(kernel, state)
        self._set_model(kernel, model, X.dtype, X.shape[1])
        self.t_ += n_epochs * n_rows
        if not np.all(np.isfinite(model.view(kernel.model_type))):
            advice = divergence_advice(self)
            warnings.warn(
                f"{type(self).__name__} diverges: its model is not finite; {advice}",
                ConvergenceWarning,
                stacklevel=4,  # where fit or partial_fit was called
            )
        return self


class UnsupervisedEstimator(KernelEstimator):
    """A compiled estimator that is trained on X without targets."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train from scratch in ``n_epochs`` passes; in one pass if there is no such parameter.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows. float32 is kept, any other type is converted to float64.
        y : None
            Not used.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, at least 0. If None, all weights are 1.

        Returns
        -------
        object
            The fitted estimator.
        """
        return self._fit(X, None, sample_weight, is_fit=True)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue training, with one pass over these rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows, which are converted to the type of X in the first call.
        y : None
            Not used.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, at least 0. If None, all weights are 1.

        Returns
        -------
        object
            The fitted estimator.
        """
        return self._fit(X, None, sample_weight, is_fit=False)

    def _read(self, X: Any, y: Any, first: bool, is_fit: bool, classes: Any) -> tuple[Any, None]:
        return self._validated(X, dtype=FLOATS if first else self._dtype, reset=first), None

    def _set_model(self, kernel: Any, model: np.ndarray, dtype: Any, n_features: int) -> None:
        self._dtype = dtype  # training continues in the type of the first rows


def new_state(kernel: Kernel) -> np.ndarray:
    """Return an untrained state."""
    state = aligned_bytes(kernel.state_bytes)
    kernel.start(state)
    return state


def copy_state(state: np.ndarray) -> np.ndarray:
    """Return a copy of a state in aligned memory."""
    other = aligned_bytes(len(state))
    other[:] = state
    return other


def read_model(kernel: Kernel, state: np.ndarray) -> np.ndarray:
    """Return the model of a state, as bytes."""
    model = aligned_bytes(kernel.model_bytes)
    kernel.read_out(state, model)
    return model


def _kernel_range(rows: Rows) -> tuple[int, int, np.ndarray | None]:
    """Return rows in the form that kernels take: (start, stop, row indices or None)."""
    return (rows.start, rows.stop, None) if isinstance(rows, slice) else (0, len(rows), rows)


class KernelTrainer:
    """Trains states by a kernel, for one model or for a batch of models.

    A state is a flat array of bytes.

    Parameters
    ----------
    kernel : Kernel
        A kernel for these rows.
    rows : PreparedRows
        The rows. The outputs have the type of their X.
    """

    def __init__(self, kernel: Kernel, rows: PreparedRows) -> None:
        self._kernel = kernel
        self.rows = rows
        self.dtype: np.dtype = rows.here.X.dtype
        self.n_outputs: int = kernel.n_outputs
        self.trains_pairs: bool = kernel.trains_pairs
        self.state_bytes: int = kernel.state_bytes

    def start(self) -> np.ndarray:
        return new_state(self._kernel)

    def update(self, state: np.ndarray, phase: Phase | Rows) -> None:
        self.survey(state, phase)
        self.replay(state, rows_of(phase))

    def replay(self, state: np.ndarray, rows: Rows) -> None:
        for part in self.rows.in_blocks(rows):
            self._kernel.update(state, *_kernel_range(part))

    def survey(self, state: np.ndarray, phase: Phase | Rows) -> None:
        """Add a whole phase to the statistics in a state, before the model is trained on it.

        ``phase`` may also be given as rows, which count as one phase. The new rows of a phase are
        read in prepared order. Their sums therefore do not depend on the order of training.
        """
        if self._kernel.surveys:
            rows = slice(phase.start, phase.stop) if isinstance(phase, Phase) else phase
            self._kernel.survey(state, *_kernel_range(rows))

    def outputs(self, state: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
        """Write the outputs of a state's models for the rows start to stop - 1 to ``out``.

        ``out`` has the shape (n_models * out_rows, n_outputs): all rows of the first model, then
        all rows of the second model, and so on.
        """
        model = aligned_bytes(self._kernel.model_bytes)
        for part in self.rows.in_blocks(slice(start, stop)):
            self._kernel.test(state, model, *_kernel_range(part)[:2], out.view(np.uint8))

    def test_then_train(self, state: np.ndarray, rows: Rows, out: np.ndarray) -> None:
        if self.rows.file is None:
            self._kernel.test_then_train(state, *_kernel_range(rows), out.view(np.uint8))
            return
        n_models = self._kernel.n_models
        by_model, done = out.reshape(n_models, -1, self.n_outputs), 0
        for part in self.rows.in_blocks(rows):
            begin, end, _ = _kernel_range(part)
            n = end - begin
            outputs = np.empty((n_models * n, self.n_outputs), self.dtype)
            self._kernel.test_then_train(state, begin, end, None, outputs.view(np.uint8))
            by_model[:, done : done + n] = outputs.reshape(n_models, n, -1)
            done += n

    def update_part(self, part: Part) -> None:
        """Train a state in place on one piece of a phase."""
        state, phase, begin, end = part
        if begin == 0:
            self.survey(state, phase)
        self.replay(state, cut(phase.rows, begin, end))

    def update_both_parts(self, part: Part, other: Part) -> None:
        """Train two states in place, each on a piece of a phase in prepared order."""
        spans = []
        for state, phase, begin, end in (part, other):
            if begin == 0:
                self.survey(state, phase)
            spans.append((state, phase.start + begin, phase.start + end))
        self._kernel.update_both(*spans[0], *spans[1], None)

    def update_both(
        self, first: np.ndarray, phase: Phase | Rows, second: np.ndarray, other: Phase | Rows
    ) -> None:
        both = rows_of(phase), rows_of(other)
        self.survey(first, phase)
        self.survey(second, other)
        order, spans = None, [(rows.start, rows.stop) for rows in both if isinstance(rows, slice)]
        if len(spans) < 2:
            indices = [
                np.arange(rows.start, rows.stop, dtype=np.uint32)
                if isinstance(rows, slice)
                else rows
                for rows in both
            ]
            order, n_first = np.concatenate(indices), len(indices[0])
            spans = [(0, n_first), (n_first, len(order))]
        self._kernel.update_both(first, *spans[0], second, *spans[1], order)

    snapshot = staticmethod(copy_state)

    def walk_summing(
        self, plan: Partition, node: Node, state: np.ndarray, out: np.ndarray
    ) -> tuple[int, np.ndarray]:
        """Walk a subtree as ``walk_subtree`` does, and also return the sum of its fold models.

        Returns
        -------
        n_updates : int
            The number of row updates.
        total : ndarray of shape (n_model_parameters,), float64
            The sum of the fold models' parameters, added along the tree.
        """
        n_levels = (node.n_folds - 1).bit_length() + 1
        sums = np.zeros((n_levels, self._kernel.model_bytes // self._kernel.itemsize))
        n_updates = self.walk_subtree(plan, node, state, out, sums=sums)
        return n_updates, sums[0].copy()

    def walk_subtree(
        self,
        plan: Partition,
        node: Node,
        state: np.ndarray,
        out: np.ndarray,
        kept: np.ndarray | None = None,
        least_folds: int = 1,
        sums: np.ndarray | None = None,
        models: np.ndarray | None = None,
    ) -> int:
        """Test the folds of a node, given its state; return the number of row updates.

        Parameters
        ----------
        plan : Partition
        node : Node
        state : ndarray
            The state of the node. It is copied.
        out : ndarray
            Receives the outputs for the rows of the node.
        kept : ndarray of shape (n_nodes, state_bytes), default=None
            Receives the states of all nodes with at least ``least_folds`` folds, in preorder.
        least_folds : int, default=1
        sums : ndarray of shape (n_levels, n_model_parameters), default=None
            Working memory. Its first row receives the sum of the fold models.
        models : ndarray of shape (n_folds, n_model_parameters), default=None
            Receives the models of all folds. ``sums`` must then be None.
        """
        n_levels = (node.n_folds - 1).bit_length() + 1
        states = aligned_empty((n_levels, len(state)))
        states[0] = state
        start, stop = plan.rows(node)
        is_ordered = plan.random or plan.n_epochs > 1
        kernel = self._kernel
        log = aligned_bytes(kernel.log_bytes) if kernel.log_bytes else None
        order = np.empty(plan.n_epochs * (stop - start), np.uint32) if is_ordered else None
        model = aligned_bytes(kernel.model_bytes)
        return kernel.walk_subtree(
            plan,
            node,
            states,
            model,
            out.view(np.uint8),
            log,
            order,
            sums,
            kept,
            least_folds,
            models,
        )


class CompiledLearner(KernelTrainer):
    """The learner of a compiled estimator for prepared rows.

    Parameters
    ----------
    estimator : KernelEstimator
    rows : PreparedRows
    before : FittedSteps or None
        The preprocessing of a Pipeline. Transformers that are not fitted per fold have already
        been applied to ``rows``.

    Attributes
    ----------
    row_bytes : float
        The number of bytes that training reads per row.
    """

    def __init__(self, estimator: KernelEstimator, rows: PreparedRows, before: Any = None) -> None:
        n_classes = None if rows.classes is None else len(rows.classes)
        X = rows.here.X
        kernel = estimator.make_kernel((X, rows.here.y, n_classes))
        self.weights_of_classes = estimator.weights_of_classes(rows.classes)
        self.weights = rows.weights_with(self.weights_of_classes)
        kernel.weigh(rows.here.weights_with(self.weights_of_classes), estimator.is_balanced)
        self._estimator_kernel = kernel
        kernel = with_scaled_rows(before, kernel, rows)
        super().__init__(kernel, rows)
        self.before = before
        # A kernel with transformers fitted per fold surveys each phase as a whole.
        self.phases_may_be_cut = not kernel.surveys
        self.settings = estimator
        self.kind = type(estimator)
        self.respond = estimator.respond
        is_slow = estimator.rewrites_often and isinstance(X, SparseRows)
        self.lane_parameters = () if is_slow else estimator.lane_parameters
        self.breakpoints = estimator.breakpoints()
        n_bytes: float = X.shape[1] * X.dtype.itemsize
        if isinstance(X, SparseRows):
            # Each value is stored with its column index of 4 bytes.
            n_bytes = len(X.values) * (X.dtype.itemsize + 4) / len(X)
        # 1 is added because the number of bytes must not be 0 for rows without nonzeros.
        self.row_bytes: float = 1 + n_bytes * self.n_outputs
        #: The names and the values of bound settings, encoded for keys as they are needed.
        self.encoded: dict[str, tuple[bytes, bytes]] = {}
        # Whether all predictions of the estimator can be computed from outputs.
        self.has_outputs = hasattr(self.kind, "_outputs")

    def bound_settings(self, n_seen: int) -> dict[str, Any]:
        """Return the parameters, with values, that influence a state after ``n_seen`` rows."""
        names = self.settings.bound(n_seen)
        settings = {name: getattr(self.settings, name) for name in names}
        if "random_state" in settings:
            settings["random_state"] = self.settings._seed
        if isinstance(settings.get("class_weight"), dict):  # the order of keys has no influence
            settings["class_weight"] = self.weights_of_classes
        return settings if self.before is None else {**settings, **self.before.settings}

    def test_then_train(self, state: np.ndarray, rows: Rows, out: np.ndarray) -> None:
        if self._kernel.tests_rows:
            super().test_then_train(state, rows, out)
            return
        # The kernel only tests ranges of rows, so other rows within this range are tested as well.
        indices = np.r_[rows]
        of_all = np.empty((len(self.rows.order), self.n_outputs), self.dtype)
        self.outputs(state, int(indices.min()), int(indices.max()) + 1, of_all)
        out[:] = of_all[rows]
        self.update(state, rows)

    def numbers(self, state: np.ndarray) -> np.ndarray:
        model = read_model(self._kernel, state)
        return model.view(self._kernel.model_type).astype(np.float64)

    def with_numbers(self, numbers: np.ndarray) -> Any:
        model = numbers.astype(self._kernel.model_type).view(np.uint8)
        return self._fitted(model, None, len(self.rows.order))

    def estimator(self, state: np.ndarray) -> Any:
        model = read_model(self._kernel, state)
        if not np.all(np.isfinite(model.view(self._kernel.model_type))):
            return None
        return self._fitted(model, self.snapshot(state), self._kernel.n_seen(state))

    def _fitted(self, model: np.ndarray, state: np.ndarray | None, n_seen: int) -> Any:
        """Return a fitted estimator with a model (bytes) and its state, or a fitted Pipeline."""
        fitted = clone(self.settings)
        parameters = fitted.get_params()
        for name, value in vars(self.settings).items():  # the attributes that _settle has set
            if name not in parameters:
                setattr(fitted, name, value)
        fitted._trained_as = fitted._fixed()
        if self.rows.classes is not None:
            fitted.classes_ = self.rows.classes
        # The state begins with the estimator's state. Statistics of transformers may come after
        # it.
        fitted._state = None if state is None else state[: self._estimator_kernel.state_bytes]
        fitted.t_ = n_seen
        fitted._set_model(self._estimator_kernel, model, self.dtype, self.rows.n_features)
        if self.before is None:
            return fitted
        if self.rows.feature_names is not None:  # transformers pass data frames to the last step
            fitted.feature_names_in_ = self.rows.feature_names
        if not isinstance(self._kernel, Scaled):
            return self.before.fitted(fitted)
        assert state is not None
        moments = np.zeros((3, self.before.acts.shape[1]))
        n_rows = self._kernel.moments(state, *moments)
        return self.before.fitted(fitted, (n_rows, moments))

    def score_rows(self, start: int, stop: int) -> tuple[Any, np.ndarray | None]:
        rows, targets = self.rows, self.rows.targets
        if self.before is not None:
            X = take_rows(self.before.X, rows.order[start:stop])
        elif isinstance(rows.X, SparseRows):
            X = rows.X.as_given(start, stop, rows.n_features)
        else:
            X = take_rows(rows.X, slice(start, stop))[:, : rows.n_features]
        if targets is None:
            return X, None
        y = targets[start:stop]
        return X, y if rows.classes is None else rows.classes[y]


def with_scaled_rows(before: FittedSteps | None, kernel: Kernel, rows: PreparedRows) -> Kernel:
    """Wrap a kernel so that it reads scaled rows, if a transformer is fitted per fold."""
    if before is None or not before.has_running:
        return kernel
    flags, rows = (before.acts[0], before.acts[1]), rows.here
    if not isinstance(rows.X, SparseRows):
        return Scaled(kernel, *flags, rows.blocks)
    if rows.X.dense is None:
        return Scaled(kernel, *flags)
    return Scaled(kernel, *flags, rows.blocks, np.flatnonzero(before.is_beside))


# The maximal size of a state of a batch, in bytes. A state and the copy of it that is trained then
# fit into a third-level cache of 32 MB.
_MAX_STATE_BYTES = 2**24


class Lanes(KernelTrainer):
    """A batch of learners that one kernel trains together, vectorised over the learners.

    The results are bit for bit the same as if each learner were trained alone. The learners are of
    the same class and may only differ in their ``lane_parameters``. Outputs have the shape
    (n_learners * out_rows, n_outputs): all rows of the first learner, then all rows of the second
    learner, and so on.

    Parameters
    ----------
    learners : list of CompiledLearner
    free_bytes : int, default=0
        The minimal number of unused bytes after the outputs of each learner.

    Attributes
    ----------
    out_rows : int
        The number of rows of the outputs per learner, unused rows included.
    """

    def __init__(self, learners: list[CompiledLearner], free_bytes: int = 0) -> None:
        first: Any = learners[0].settings
        rows = learners[0].rows
        n_classes = None if rows.classes is None else len(rows.classes)
        settings = [learner.settings for learner in learners]
        self.learners = learners
        kernel = first.make_kernel((rows.X, rows.y, n_classes), settings)
        kernel.weigh(learners[0].weights, first.is_balanced)
        kernel.leave_room(-(-free_bytes // (kernel.n_outputs * kernel.itemsize)))
        self._free_bytes, self.out_rows = free_bytes, kernel.out_rows
        super().__init__(with_scaled_rows(learners[0].before, kernel, rows), rows)

    def only(self, indices: list[int]) -> "Lanes":
        """Return ``Lanes`` of the learners with these indices."""
        return Lanes([self.learners[i] for i in indices], self._free_bytes)

    def take(self, lanes: "Lanes", state: np.ndarray, indices: list[int]) -> np.ndarray:
        """Return the state of the learners of this object, copied from ``state``.

        ``state`` belongs to ``lanes``, which have these learners at the positions ``indices``.
        """
        taken = self.start()
        chosen = np.array(indices, np.int64)
        cast(LinearKernel, self._kernel).take(
            cast(LinearKernel, lanes._kernel), state, chosen, taken
        )
        return taken

    @staticmethod
    def max_learners(learner: CompiledLearner) -> int:
        """Return the maximal number of learners in a batch for which batches are fast.

        A batch has one lane for each output of each learner. The number is 0 if a single learner
        has more outputs than a batch may have lanes.
        """
        bytes_per_lane = learner.state_bytes // learner.n_outputs
        n_lanes = max(VECTOR_BYTES // learner.dtype.itemsize, _MAX_STATE_BYTES // bytes_per_lane)
        return min(MOST, n_lanes) // learner.n_outputs

    @staticmethod
    def min_learners(learner: CompiledLearner) -> int:
        """Return the minimal number of learners for which a batch is faster than single trainings.

        A batch computes with whole SIMD vectors, of which too few learners would fill only a part.
        """
        return 1 + 3 * VECTOR_BYTES // (8 * learner.dtype.itemsize * learner.n_outputs)


def settings_key(learner: CompiledLearner, n_seen: int, *but: str | None) -> bytes:
    """Return a digest of the parameters that influence a state after ``n_seen`` rows.

    The digest excludes the parameters whose names are in ``but``.
    """
    bound, encoded = learner.bound_settings(n_seen), learner.encoded
    names = sorted(name for name in bound if name not in but)
    for name in names:
        if name not in encoded:
            encoded[name] = encode(name), encode(bound[name])
    parts = [encoded[name][part] for part in range(2) for name in names]
    return digest(b"(" + digest(encode(learner.kind), *parts))
