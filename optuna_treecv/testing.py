"""Test classes to inherit: the contracts of an estimator for TreeCV, and of an engine."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
import pickle
from tempfile import TemporaryDirectory
from typing import Any
from typing import TypeVar

import numpy as np
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal
from scipy.sparse import csr_matrix
from sklearn.base import is_classifier
from sklearn.base import is_clusterer
from sklearn.base import is_regressor
from sklearn.metrics import accuracy_score
from sklearn.metrics import f1_score
from sklearn.metrics import get_scorer
from sklearn.metrics import mean_squared_error
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import RepeatedKFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.utils.validation import has_fit_parameter

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv._kernels.order import random_order
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.crossval.evaluate import tree_cross_val_predict
from optuna_treecv.crossval.evaluate import tree_cross_validate
from optuna_treecv.engines.treecv.learner import Learner
from optuna_treecv.engines.treecv.learners.from_estimator import make_learner
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import layout_for
from optuna_treecv.rows.cv import make_cuts
from optuna_treecv.rows.cv import ToCut
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.folds import Folds
from optuna_treecv.scoring.metrics import pooled
from optuna_treecv.search.search_cv import TreeCVSearchCV
from optuna_treecv.study.functions import treecv_objective

__all__ = ["EngineContract", "LearnerContract"]

_SEED = 5

_METRICS: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy_score,
    "f1_macro": partial(f1_score, average="macro"),
    "neg_mean_squared_error": lambda y, predicted: -mean_squared_error(y, predicted),
    "r2": r2_score,
}

Model = TypeVar("Model")


class LearnerContract:
    """Tests of an estimator, run by pytest.

    Derive a class whose name begins with ``Test`` and define ``make_estimator``.

    Attributes
    ----------
    may_be_cut : bool, default=False
        Whether several calls of ``partial_fit`` give the same model as one call on the same rows.
        TreeCV does not need this, because it makes one call per training phase.

    Examples
    --------
    >>> from sklearn.naive_bayes import MultinomialNB
    >>> from optuna_treecv.testing import LearnerContract
    >>> class TestMultinomialNB(LearnerContract):
    ...     may_be_cut = True
    ...
    ...     def make_estimator(self):
    ...         return MultinomialNB()
    ...
    ...     def make_data(self):
    ...         X, y = super().make_data()
    ...         return abs(X), y
    """

    may_be_cut = False

    def make_estimator(self) -> Any:
        """Return the estimator to test, with settings by which it learns from about fifty rows.

        Returns
        -------
        estimator
            A new estimator in each call.
        """
        raise NotImplementedError("make_estimator must return the estimator to test.")

    def make_data(self) -> tuple[Any, np.ndarray | None]:
        """Return about fifty rows for the tests.

        By default y has three noisy classes for a classifier, the score of one class for a
        regressor, and is None for other estimators.

        Returns
        -------
        X : array-like or sparse matrix of shape (n_rows, n_features)
            Rows.
        y : ndarray of shape (n_rows,) or None
            Labels, targets or None.
        """
        rng = np.random.default_rng(0)
        X = rng.normal(size=(45, 6))
        scores = X @ rng.normal(size=(6, 3)) + 0.5 * rng.normal(size=(45, 3))
        estimator = self.make_estimator()
        if is_classifier(estimator):
            return X, scores.argmax(axis=1)
        return X, scores[:, 0] if is_regressor(estimator) else None

    def test_same_rows_same_model(self) -> None:
        """Check that two trainings on the same rows give the same model, bit for bit."""
        learner = self._learner()
        a, b = learner.start(), learner.start()
        for state in (a, b):
            _train(learner, state, 0, 20)
            _train(learner, state, 20, None)
        assert_array_equal(_outputs(learner, a), _outputs(learner, b))

    def test_training_moves_the_model(self) -> None:
        """Check that training changes the model, because otherwise other tests prove nothing."""
        learner = self._learner()
        state = learner.start()
        _train(learner, state, 0, 20)
        before = _outputs(learner, state)
        _train(learner, state, 20, None)
        assert not np.array_equal(_outputs(learner, state), before)

    def test_a_copy_goes_its_own_way(self) -> None:
        """Check that training a copy does not change the original, and vice versa."""
        learner = self._learner()
        state = learner.start()
        _train(learner, state, 0, 20)
        before = _outputs(learner, state)
        copy = learner.snapshot(state)
        _train(learner, copy, 20, None)
        assert_array_equal(_outputs(learner, state), before)
        after = _outputs(learner, copy)
        _train(learner, state, 20, None)
        assert_array_equal(_outputs(learner, copy), after)
        assert_array_equal(_outputs(learner, state), after)

    def test_a_state_may_be_stored(self) -> None:
        """Check that training continues after pickling as if nothing had happened."""
        learner = self._learner()
        state = learner.start()
        _train(learner, state, 0, 20)
        stored = pickle.loads(pickle.dumps(state))
        for trained in (state, stored):
            _train(learner, trained, 20, None)
        assert_array_equal(_outputs(learner, stored), _outputs(learner, state))

    def test_may_be_cut_anywhere(self) -> None:
        """Check, if ``may_be_cut``, that training in several calls gives the model of one call."""
        if not self.may_be_cut:
            return
        learner = self._learner()
        whole, parts = learner.start(), learner.start()
        _train(learner, whole, 0, None)
        for begin, end in ((0, 1), (1, 2), (2, 17), (17, 18), (18, None)):
            _train(learner, parts, begin, end)
        assert_array_equal(_outputs(learner, parts), _outputs(learner, whole))

    def test_the_tree_equals_trainings_from_scratch(self) -> None:
        """Check that each fold's outputs equal those of a separate training along its path."""
        X, y = self.make_data()
        for cv in (2, 3, 7, 8, "loo"):
            for order in ("fixed", "random"):
                predicted = tree_cross_val_predict(
                    self.make_estimator(), X, y, **self._options(cv, order)
                )
                expected = self._from_scratch(X, y, cv, order)
                assert_array_equal(predicted, expected)

    def test_no_row_reaches_the_model_that_tests_it(self) -> None:
        """Check that a fold's labels, or rows, do not influence its model's predictions."""
        X, y = self.make_data()
        fold = np.arange(X.shape[0]) % 5
        for order in ("fixed", "random"):
            options = self._options(fold, order)
            before = tree_cross_val_predict(self.make_estimator(), X, y, **options)
            for i in (0, 3):
                changed_X, changed_y = _changed(X, y, fold == i)
                after = tree_cross_val_predict(
                    self.make_estimator(), changed_X, changed_y, **options
                )
                tested = np.flatnonzero(fold == i)
                if y is None:  # the tested rows have changed, except for the first
                    tested = tested[:1]
                assert_array_equal(after[tested], before[tested])

    def test_threads_change_nothing(self) -> None:
        """Check that two threads give the same scores as one."""
        X, y = self.make_data()
        single, double = (
            tree_cross_validate(self.make_estimator(), X, y, cv=15, method="treecv", n_jobs=n_jobs)
            for n_jobs in (1, 2)
        )
        assert_array_equal(double.test_score, single.test_score)

    def _method(self) -> str:
        """Return the method whose outputs are compared."""
        estimator = self.make_estimator()
        if is_clusterer(estimator):
            return "predict"
        for method in ("decision_function", "predict_proba", "score_samples", "predict"):
            if hasattr(estimator, method):
                return method
        raise AssertionError(f"{estimator!r} predicts nothing")

    def _options(self, cv: Any, order: str) -> dict[str, Any]:
        return {
            "cv": cv,
            "order": order,
            "stratify": False,
            "method": "treecv",
            "random_state": _SEED,
            "response_method": self._method(),
        }

    def _learner(self) -> Learner:
        X, y = self.make_data()
        estimator = self.make_estimator()
        rows = Data(X, y).prepare(layout_for(estimator), np.arange(X.shape[0], dtype=np.uint32))
        return make_learner(estimator, rows, (self._method(),), _SEED)

    def _from_scratch(self, X: Any, y: Any, cv: Any, order: str) -> np.ndarray:
        """Return the outputs of k separate trainings, each along its path of Algorithm 1."""
        seed = derive_seed(_SEED, 0)
        n_rows = X.shape[0]
        (folds,) = make_cuts(cv, ToCut(X, y, None, n_rows, True), lambda _: seed, 1)
        assert isinstance(folds, Folds)
        cuts = [i * n_rows // folds.n_folds for i in range(folds.n_folds + 1)]
        chunks = [range(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
        estimator = self.make_estimator()
        rows = Data(X, y).prepare(layout_for(estimator), folds.order)
        learner = make_learner(estimator, rows, (self._method(),), _SEED)
        out = np.empty((n_rows, learner.n_outputs), learner.dtype)

        def train(path: list, phase: Any, n_seen: int) -> list:
            if order == "random" and len(phase) > 1:
                rows = np.empty(len(phase), np.uint32)
                random_order(seed, phase[0], phase[-1] + 1, n_seen, rows)
                return [*path, rows]
            return [*path, np.array(phase, np.uint32)]

        def test(path: list, fold: int) -> None:
            state = learner.start()
            for phase in path:
                learner.update(state, phase)
            learner.outputs(state, chunks[fold][0], chunks[fold][-1] + 1, out)

        treecv(chunks, train, test, [])
        prepared = learner.respond(out, self._method())
        expected = np.empty_like(prepared)
        expected[folds.order] = prepared
        if rows.classes is not None and self._method() == "predict":
            return rows.classes[expected.astype(np.intp)]
        return expected


class EngineContract:
    """Tests of the engine that evaluates an estimator, run by pytest.

    Derive a class whose name begins with ``Test`` and define ``make_estimator``, ``method``,
    ``bad_parameters`` and ``other_parameters``. Only the public functions of this package are
    used.

    Attributes
    ----------
    method : str
        The ``CVResult.method`` of the engine that evaluates the estimator.
    bad_parameters : dict of str to object
        Parameters of the estimator that its ``fit`` refuses.
    other_parameters : dict of str to object
        Parameters of a second candidate, which ``fit`` accepts. Their names are among those of
        ``bad_parameters``.
    rtol : float, default=1e-6
        The tolerance of scores and predictions, relative to the largest ones of converged fits.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> from optuna_treecv.testing import EngineContract
    >>> class TestRidge(EngineContract):
    ...     method = "exact"
    ...     bad_parameters = {"alpha": -1.0}
    ...     other_parameters = {"alpha": 10.0}
    ...
    ...     def make_estimator(self):
    ...         return Ridge()
    """

    method: str
    bad_parameters: Mapping[str, Any]
    other_parameters: Mapping[str, Any]
    rtol = 1e-6

    def make_estimator(self) -> Any:
        """Return the estimator to evaluate.

        Returns
        -------
        estimator
            A new estimator in each call.
        """
        raise NotImplementedError("make_estimator must return the estimator to test.")

    def make_reference(self) -> Any:
        """Return the estimator of the reference fits, by default the same one.

        Iterative solvers need a small ``tol`` and a large ``max_iter`` here.

        Returns
        -------
        estimator
            A new estimator in each call.
        """
        return self.make_estimator()

    def make_data(self) -> tuple[Any, np.ndarray]:
        """Return ninety rows for the tests.

        By default y has three noisy classes for a classifier and numbers for a regressor.

        Returns
        -------
        X : array-like of shape (n_rows, n_features)
            Rows.
        y : ndarray of shape (n_rows,)
            Labels or targets.
        """
        rng = np.random.default_rng(0)
        X = rng.normal(size=(90, 5))
        scores = X @ rng.normal(size=(5, 3)) + 0.7 * rng.normal(size=(90, 3))
        return X, scores.argmax(axis=1) if self._classifies() else scores[:, 0]

    def test_the_engine_is_chosen(self) -> None:
        """Check that ``method="auto"`` takes the engine."""
        result = tree_cross_validate(self.make_estimator(), *self.make_data(), cv=5)
        assert result.method == self.method, result.reason

    def test_scores_equal_those_of_fits(self) -> None:
        """Check the scores over folds, groups, overlapping splits, a hold-out and time series."""
        groups = np.arange(len(self.make_data()[1])) // 4 % 13
        for cv in (
            KFold(4, shuffle=True, random_state=0),
            RepeatedKFold(n_splits=3, n_repeats=2, random_state=0),
            ShuffleSplit(3, random_state=0),
            ShuffleSplit(1, random_state=0),
            TimeSeriesSplit(3),
        ):
            self._equal(self._scores(cv=cv), self._fits(cv))
        by_groups = self._scores(cv=GroupKFold(4), groups=groups)
        self._equal(by_groups, self._fits(GroupKFold(4), groups=groups))

    def test_predictions_equal_those_of_fits(self) -> None:
        """Check the out-of-fold predictions of each method that the estimator has."""
        X, y = self.make_data()
        cv = KFold(4, shuffle=True, random_state=0)
        for method in ("predict", "decision_function", "predict_proba"):
            if hasattr(self.make_estimator(), method):
                options = {"cv": cv, "shuffle": False, "response_method": method}
                actual = tree_cross_val_predict(self.make_estimator(), X, y, **options)
                expected = cross_val_predict(self.make_reference(), X, y, cv=cv, method=method)
                self._equal(actual, np.squeeze(expected))  # CatBoost predicts labels in a column

    def test_fold_models_equal_fits(self) -> None:
        """Check that the model of each fold predicts all rows as a fit on its training rows."""
        X, y = self.make_data()
        cv = KFold(4, shuffle=True, random_state=0)
        settings = Settings(cv=cv, shuffle=False)
        cross_validation = CrossValidation.of(X, y, settings, self.make_estimator())
        models = run_for(cross_validation, self.make_estimator()).fold_models()
        for model, (train, _) in zip(models, cv.split(X), strict=True):
            expected = self.make_reference().fit(X[train], y[train])
            for method in ("predict", "decision_function", "predict_proba"):
                if hasattr(expected, method):
                    self._equal(getattr(model, method)(X), getattr(expected, method)(X))

    def test_several_scores_equal_those_of_fits(self) -> None:
        """Check two scores at once, a pooled score, and the scores of rows."""
        X, y = self.make_data()
        cv, scoring = KFold(4), [self._scoring(), self._second_scoring()]
        options = {"cv": cv, "shuffle": False}
        result = tree_cross_validate(self.make_estimator(), X, y, scoring=scoring, **options)
        for name in scoring:
            self._equal(result.scores[name].test_score, self._fits(cv, scoring=name))
        predicted = cross_val_predict(self.make_reference(), X, y, cv=cv)
        for name in scoring:
            score = tree_cross_validate(
                self.make_estimator(), X, y, scoring=pooled(name), **options
            )
            self._equal(score.mean, _METRICS[name](y, predicted))
        loss = "error" if self._classifies() else "squared_error"
        of_rows = tree_cross_validate(
            self.make_estimator(), X, y, scoring=loss, row_losses=True, **options
        )
        expected = predicted != y if self._classifies() else np.square(predicted - y)
        self._equal(of_rows.row_losses, expected, 10.0)  # in float32

    def test_all_layouts_of_rows(self) -> None:
        """Check Fortran order, float32, data frames and, unless ``fit`` refuses it, CSR."""
        X, y = self.make_data()
        cv = KFold(4)
        rounded = X.astype(np.float32)
        layouts = [(np.asfortranarray(X), X, 1.0), (rounded, rounded.astype(float), 1e3)]
        if find_spec("pandas"):
            from pandas import DataFrame

            names = [f"column {i}" for i in range(X.shape[1])]
            layouts.append((DataFrame(X, columns=names), X, 1.0))
        sparse = csr_matrix(X)
        if self._error(lambda: self.make_reference().fit(sparse, y)) is None:
            layouts.append((sparse, sparse, 1.0))
        else:
            error = self._error(lambda: self._scores(cv=cv, X=sparse))
            assert isinstance(error, ValueError | TypeError), error
        for rows, same_rows, slack in layouts:
            self._equal(self._scores(cv=cv, X=rows), self._fits(cv, X=same_rows), slack)

    def test_missing_and_infinite_values(self) -> None:
        """Check that NaN and infinity give the scores of ``fit``, or are refused as by ``fit``."""
        X, y = self.make_data()
        for value, name in ((np.nan, "NaN"), (np.inf, "infinity")):
            bad_X = np.array(X)
            bad_X[7, 1] = value
            if self._error(partial(self.make_reference().fit, bad_X, y)) is None:
                self._equal(self._scores(cv=KFold(4), X=bad_X), self._fits(KFold(4), X=bad_X))
                continue
            error = self._error(partial(self._scores, cv=KFold(4), X=bad_X))
            assert isinstance(error, ValueError) and name in str(error), error

    def test_class_weight(self) -> None:
        """Check the scores with ``class_weight``, if the estimator has it."""
        if "class_weight" not in last_step(self.make_estimator()).get_params():
            return
        classes = np.unique(self.make_data()[1])
        cv = KFold(4, shuffle=True, random_state=0)
        for class_weight in ("balanced", dict(zip(classes, (3.0, 0.5, 1.0), strict=False))):
            estimator, reference = self.make_estimator(), self.make_reference()
            for changed in (estimator, reference):
                last_step(changed).set_params(class_weight=class_weight)
            scores = self._scores(cv=cv, estimator=estimator)
            self._equal(scores, self._fits(cv, reference=reference))

    def test_a_search_equals_grid_search(self) -> None:
        """Check the scores and the model of a search, and that a batch changes no score."""
        X, y = self.make_data()
        grid = {name: [value] for name, value in self._searched().items()}
        grid |= {name: [*grid[name], value] for name, value in self.other_parameters.items()}
        options = {"param_grid": grid, "cv": KFold(4), "scoring": self._scoring()}
        search = TreeCVSearchCV(self.make_estimator(), **options, shuffle=False)
        fits = GridSearchCV(self.make_reference(), **options)
        for fitted in (search, fits):
            fitted.fit(X, y)
        candidates = search.cv_results_["params"]
        order = [fits.cv_results_["params"].index(params) for params in candidates]
        names = [name for name in fits.cv_results_ if name.startswith("split")]
        for name in names:
            self._equal(search.cv_results_[name], fits.cv_results_[name][order])
        assert search.best_params_ == fits.best_params_
        fitted = self.make_estimator().set_params(**fits.best_params_).fit(X, y)
        self._equal(search.predict(X), fitted.predict(X))
        objective = treecv_objective(
            self.make_estimator(), X, y, **options, shuffle=False, cache=None
        )
        for i, params in enumerate(candidates):
            scores = [search.cv_results_[name][i] for name in names]
            assert_allclose(_evaluate(objective, params), scores, rtol=1e-9, atol=1e-12)

    def test_no_row_reaches_the_model_that_tests_it(self) -> None:
        """Check that neither the labels nor the rows of a fold influence its model's predictions.

        All rows of the fold except the first are replaced, by rows nearby and far away. Solvers
        may lose two digits by those far away.
        """
        X, y = self.make_data()
        fold = np.arange(len(y)) % 5
        before = self._predict(X, y, fold)
        is_tested = fold == 3
        first, *others = np.flatnonzero(is_tested)
        for shift in (3.0, 1e6):
            changed_X = np.array(X)
            changed_X[others] += shift
            changed = self._predict(changed_X, y, fold)
            self._equal(changed[first], before[first], 100.0 if shift > 1e3 else 1.0)
            changed_y = np.where(is_tested, np.roll(y, 7), y)
            if not self._classifies():
                changed_y = np.where(is_tested, y + shift, y)
            changed = self._predict(X, changed_y, fold)
            self._equal(changed[is_tested], before[is_tested], 100.0 if shift > 1e3 else 1.0)

    def test_weights(self) -> None:
        """Check the scores with weights, some of which are 0, or that weights are refused."""
        X, y = self.make_data()
        weights = np.arange(len(y)) % 4 / 2
        cv = KFold(4, shuffle=True, random_state=0)
        if has_fit_parameter(last_step(self.make_estimator()), "sample_weight"):
            scores = self._scores(cv=cv, sample_weight=weights)
            self._equal(scores, self._fits(cv, weights, weighs_scores=True))
            scores = self._scores(cv=cv, sample_weight=weights, score_weight=None)
            self._equal(scores, self._fits(cv, weights))
            return
        error = self._error(lambda: self._scores(cv=cv, sample_weight=weights))
        assert isinstance(error, ValueError | TypeError) and "sample_weight" in str(error)

    def test_refusals(self) -> None:
        """Check that parameters which ``fit`` refuses are refused by an error that names them."""
        X, y = self.make_data()
        estimator = self.make_estimator().set_params(**self.bad_parameters)
        own_error = self._error(lambda: estimator.fit(X, y))
        assert own_error is not None
        error = self._error(lambda: tree_cross_validate(estimator, X, y, cv=5))
        assert isinstance(error, ValueError | type(own_error))
        assert any(name.rpartition("__")[2] in str(error) for name in self.bad_parameters)

    def test_an_interrupted_evaluation_is_resumed(self) -> None:
        """Check that an interrupted evaluation gives the same scores after a restart."""
        expected = self._scores(cv=KFold(4))
        with TemporaryDirectory() as folder:
            interrupted = self._objective(folder, _interrupting(self._scoring(), 1))
            error = self._error(lambda: interrupted.evaluate(self._searched()))
            assert isinstance(error, KeyboardInterrupt)
            result = self._objective(folder, self._scoring()).evaluate(self._searched())
            assert_array_equal(result.test_score, expected)

    def test_two_processes_have_one_store(self) -> None:
        """Check that two processes that share a store get the same scores as without it."""
        expected = self._scores(cv=KFold(4))
        with TemporaryDirectory() as folder:
            objective = self._objective(folder, self._scoring())
            calls = [p.submit(_evaluate, objective, self._searched()) for p in _two_processes()]
            for call in calls:
                assert_array_equal(call.result(), expected)

    def _classifies(self) -> bool:
        return is_classifier(self.make_estimator())

    def _scoring(self) -> str:
        return "accuracy" if self._classifies() else "neg_mean_squared_error"

    def _second_scoring(self) -> str:
        return "f1_macro" if self._classifies() else "r2"

    def _scores(self, X: Any = None, estimator: Any = None, **options: Any) -> np.ndarray:
        rows, y = self.make_data()
        estimator = self.make_estimator() if estimator is None else estimator
        options = {"scoring": self._scoring(), "shuffle": False, **options}
        X = rows if X is None else X
        return tree_cross_validate(estimator, X, y, **options).test_score

    def _fits(
        self,
        cv: Any,
        weights: np.ndarray | None = None,
        *,
        X: Any = None,
        reference: Any = None,
        groups: np.ndarray | None = None,
        scoring: str | None = None,
        weighs_scores: bool = False,
    ) -> np.ndarray:
        """Return the scores of fits by scikit-learn."""
        rows, y = self.make_data()
        reference = self.make_reference() if reference is None else reference
        steps = [name for name, _ in getattr(reference, "steps", [])]
        name = "__".join([*steps[-1:], "sample_weight"])
        fits = cross_validate(
            *(reference, rows if X is None else X, y),
            cv=cv,
            groups=groups,
            scoring=scoring or self._scoring(),
            params=None if weights is None else {name: weights},
            return_estimator=True,
            return_indices=True,
        )
        scores: np.ndarray = fits["test_score"]
        if weighs_scores:
            assert weights is not None
            score = get_scorer(scoring or self._scoring())
            models_and_rows = zip(fits["estimator"], fits["indices"]["test"], strict=True)
            scores = np.array(
                [
                    score(model, rows[test], y[test], sample_weight=weights[test])
                    for model, test in models_and_rows
                ]
            )
        return scores

    def _predict(self, X: Any, y: Any, fold: np.ndarray) -> np.ndarray:
        estimator = self.make_estimator()
        names: tuple[Any, ...] = ("decision_function", "predict_proba", "predict")
        name = next(name for name in names if hasattr(estimator, name))
        return tree_cross_val_predict(estimator, X, y, cv=fold, response_method=name)

    def _searched(self) -> dict[str, Any]:
        params = self.make_estimator().get_params()
        return {name: params[name] for name in self.bad_parameters}

    def _objective(self, folder: str, scoring: Any) -> Any:
        store = f"sqlite:///{Path(folder, 'store.db')}"
        X, y = self.make_data()
        return treecv_objective(
            self.make_estimator(),
            X,
            y,
            param_grid={name: [value] for name, value in self._searched().items()},
            cv=KFold(4),
            shuffle=False,
            scoring=scoring,
            store=store,
        )

    def _equal(self, actual: Any, expected: Any, slack: float = 1.0) -> None:
        largest = float(np.abs(np.asarray(expected, float)).max())
        assert_allclose(actual, expected, rtol=0, atol=slack * self.rtol * max(largest, 1.0))

    def _error(self, call: Callable[[], Any]) -> BaseException | None:
        try:
            call()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
            return error
        return None


def _interrupting(scoring: str, n_calls: int) -> Callable[[Any, Any, Any], float]:
    """Return a scorer that raises KeyboardInterrupt after ``n_calls`` calls."""
    scorer, calls = get_scorer(scoring), iter(range(n_calls))

    def score(estimator: Any, X: Any, y: Any) -> float:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return float(scorer(estimator, X, y))

    return score


@cache
def _two_processes() -> list[ProcessPoolExecutor]:
    """Return two pools of one process, started once because imports take seconds."""
    return [ProcessPoolExecutor(1, mp_context=get_context("spawn")) for _ in range(2)]


def _evaluate(objective: Any, params: dict[str, Any]) -> np.ndarray:
    scores: np.ndarray = objective.evaluate(params).test_score
    return scores


def _train(learner: Learner, state: Any, start: int, stop: int | None) -> None:
    learner.update(state, slice(start, len(learner.rows.order) if stop is None else stop))


def _outputs(learner: Learner, state: Any) -> np.ndarray:
    n_rows = len(learner.rows.order)
    out = np.empty((n_rows, learner.n_outputs), learner.dtype)
    learner.outputs(state, 0, n_rows, out)
    return out


def _changed(X: Any, y: np.ndarray | None, where: np.ndarray) -> tuple[Any, np.ndarray | None]:
    """Return the data with other labels in a fold, or with other rows if there are no labels.

    In the latter case, the first row of the fold is unchanged.
    """
    if y is None:
        changed = X.copy()
        changed[np.flatnonzero(where)[1:]] += 3
        return changed, None
    if y.dtype.kind == "f":
        return X, np.where(where, y + 100, y)
    classes = np.unique(y)
    return X, np.where(where, classes[np.searchsorted(classes, y) - 1], y)


def treecv(
    chunks: Sequence[Sequence[int]],
    train: Callable[[Model, Sequence[int], int], Model],
    test: Callable[[Model, int], None],
    start: Model,
) -> None:
    """Run Algorithm 1 of Joulani, Gyorgy & Szepesvari (2015) as printed, see tree.pyx and walk.py.

    Parameters
    ----------
    chunks : sequence of sequences of int
        The rows of Z_1..Z_k.
    train : callable
        (model, rows, number of rows seen before) -> a model; the given one is unchanged.
    test : callable
        (model, fold) with folds from 0.
    start : model
        The model before any training.
    """

    def rows(s: int, e: int) -> list[int]:
        return [row for chunk in chunks[s - 1 : e] for row in chunk]

    def treecv_node(s: int, e: int, model: Model) -> None:
        if s == e:
            test(model, s - 1)
            return
        m = (s + e) // 2
        n_seen = len(rows(1, len(chunks))) - len(rows(s, e))
        treecv_node(s, m, train(model, rows(m + 1, e), n_seen))
        treecv_node(m + 1, e, train(model, rows(s, m), n_seen))

    treecv_node(1, len(chunks), start)
