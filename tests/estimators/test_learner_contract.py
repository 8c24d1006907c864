"""The contract of learners: for compiled ones, scikit-learn's, and some that break it."""

from __future__ import annotations

from ids import said
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.base import RegressorMixin
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import Perceptron
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPRegressor

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.testing import LearnerContract

COMPILED = [
    PegasosClassifier(0.05),
    PegasosClassifier(1e-4, average=True, project=True),
    PegasosClassifier(0.05, average=True, class_weight="balanced"),
    AveragedSGDClassifier(average_start=10),
    AveragedSGDClassifier(step_size="auto", class_weight="balanced"),
    AveragedSGDClassifier("log_loss", batch_size=3, learning_rate="invscaling"),
    AveragedSGDRegressor("huber", radius=0.3),
    AveragedSGDRegressor("epsilon_insensitive", batch_size=4),
    LSQSGDRegressor(),
    StreamingSVRGClassifier(initial_batch_size=4, inner_steps=5),
    StreamingSVRGClassifier(initial_batch_size=4, inner_steps=5, class_weight="balanced"),
    StreamingSVRGRegressor("huber", initial_batch_size=3, inner_steps=9, schedule="factorial"),
    StreamingKMeans(3),
    StreamingGaussianDensity(),
    StreamingGaussianDensity("full"),
]
ADAPTED = [
    SGDClassifier(max_iter=1, tol=None),
    Perceptron(max_iter=1),
    SGDRegressor(max_iter=1, tol=None, average=10),
    GaussianNB(),
    BernoulliNB(),
    MLPRegressor(hidden_layer_sizes=(3,), max_iter=1),
    MiniBatchKMeans(2, n_init=1, max_iter=1),
]


class TestCompiled(LearnerContract):
    may_be_cut = True

    @pytest.fixture(autouse=True, params=COMPILED, ids=said)
    def given(self, request):
        self.estimator = request.param

    def make_estimator(self):
        return clone(self.estimator)


class TestCompiledFloat32(TestCompiled):
    def make_data(self):
        X, y = super().make_data()
        return X.astype(np.float32), y


class TestCompiledSparse(TestCompiled):
    @pytest.fixture(
        autouse=True,
        params=[e for e in COMPILED if e.__sklearn_tags__().input_tags.sparse],
        ids=said,
    )
    def given(self, request):
        self.estimator = request.param

    def make_data(self):
        X, y = super().make_data()
        X = np.hstack([X, np.zeros((45, 200))])  # wide, so that phases are undone
        return sparse.csr_array(np.where(X > -0.5, X, 0)), y


@pytest.mark.slow
class TestAdapted(LearnerContract):
    @pytest.fixture(autouse=True, params=ADAPTED, ids=said)
    def given(self, request):
        self.estimator = request.param
        self.may_be_cut = isinstance(request.param, BernoulliNB)

    def make_estimator(self):
        return clone(self.estimator)

    def make_data(self):
        X, y = super().make_data()
        return X[:24], None if y is None else y[:24]  # calls of partial_fit are slow


# Learners that must fail.


class Forgetful(RegressorMixin, BaseEstimator):
    """Predicts the mean; ``fault`` chooses how it breaks the contract.

    For example, all copies share the mean, or a hidden generator adds noise.
    """

    sums = [0.0, 0]
    generator = np.random.default_rng(0)

    def __init__(self, fault=None):
        self.fault = fault

    def partial_fit(self, X, y):
        sums = self.sums if self.fault == "shared" else self.__dict__.get("own", [0.0, 0])
        if self.fault == "last":
            sums = [0.0, 0]
        noise = self.generator.normal() if self.fault == "random" else 0.0
        sums[0] += np.sum(y) + noise
        sums[1] += len(y)
        self.own = sums
        return self

    def predict(self, X):
        return np.full(len(X), self.own[0] / self.own[1])


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("shared", "test_a_copy_goes_its_own_way"),
        ("shared", "test_no_row_reaches_the_model_that_tests_it"),
        ("random", "test_same_rows_same_model"),
        ("random", "test_the_tree_equals_trainings_from_scratch"),
        ("last", "test_may_be_cut_anywhere"),
    ],
)
def test_faults_are_found(fault, test):
    class Faulty(LearnerContract):
        may_be_cut = True

        def make_estimator(self):
            return Forgetful(fault)

    with pytest.raises(AssertionError):
        getattr(Faulty(), test)()
