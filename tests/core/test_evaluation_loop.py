"""The loop of the core, with plans whose events are made up."""

from __future__ import annotations

from time import perf_counter
from time import sleep

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import Ridge

from optuna_treecv import engines
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.caching.keys import Key
from optuna_treecv.core.batch import evaluate_batch
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Engine
from optuna_treecv.core.engine import Failed
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import ResultSpec
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval import evaluate
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.partition import Node
from optuna_treecv.scoring.scores import FoldScores

N_FOLDS = 4
X, Y = np.zeros((20, 1)), np.arange(20.0)


class Scripted(Plan):
    """Scores the folds of a candidate by its ``constant``; a negative one fails in fold 2."""

    name, reason = "scripted", "a test wants it"
    stores_folds = False

    def __init__(self, request):
        super().__init__(request)
        self.asked = []
        self.capabilities = Capabilities(
            free_parameters=("constant",), falls_back=True, evaluates_jointly=not self.stores_folds
        )

    def cost(self):
        return "Nothing."

    def results(self, candidate, repeat):
        specs = {}
        if self.stores_folds:
            cache = self.request.cross_validation.shared.cache
            for fold in range(N_FOLDS):
                key = Key(b"", b"", b"%f" % candidate.constant, b"%d" % fold, 8)
                specs[fold + 1] = ResultSpec(key, cache, lambda m, f=fold: self.fold(0, f, m))
        return Results("key", "rows", b"all", specs)

    def fold(self, number, fold, memory):
        score = np.frombuffer(memory.tobytes()).reshape(1, 1)
        scores = FoldScores(score, np.zeros(1, bool), np.zeros((1, 3, 1)))
        folds = Node(fold, fold + 1)
        return TestedFolds(number, folds, 5, scores=scores, record=memory, seconds=0.0)

    def evaluate(self, work):
        self.asked.append((len(work.candidates), [*work.folds]))
        done = []
        try:
            for fold in work.folds:
                for number, candidate in enumerate(work.candidates):
                    if candidate.constant < 0 and fold == 2:
                        yield Failed(ValueError("a model is lost"), "it is lost", number)
                        continue
                    work.sinks[number].cost.n_updates += 5
                    memory = np.array([candidate.constant + fold]).view(np.uint8)
                    done = [(number, fold, memory)]
                    yield self.fold(number, fold, memory)
                    done = []
        finally:
            for number, *others in done:  # nobody has asked for more
                work.sinks[number].take(self.fold(number, *others))

    def predict(self, candidate, repeat, method):
        raise Failed(ValueError("a model is lost"), "it is lost")


class ByFold(Scripted):
    stores_folds = True


@pytest.fixture
def run_of(monkeypatch):
    """Return what makes runs of a plan; all runs of a test have the plan of the first one."""
    runs = []

    def make(constant, kind=Scripted, method="auto", cache=None, **others):
        estimator = DummyRegressor(strategy="constant", constant=constant)
        if runs:
            runs.append(runs[0].with_estimator(estimator))
            return runs[-1]
        engine = Engine("scripted", kind, ("auto", "treecv"))
        monkeypatch.setattr(engines, "ENGINES", (engine, engines.ENGINES[-1]))
        given = {"cv": N_FOLDS, "shuffle": False, "scoring": "squared_error"}
        settings = Settings(**given | others, method=method)
        cross_validation = CrossValidation.of(X, Y, settings, cache=cache)
        runs.append(evaluate.run_for(cross_validation, estimator))
        return runs[-1]

    return make


def fits(constant):
    return ((Y - constant) ** 2).reshape(N_FOLDS, -1).mean(axis=1)


def test_a_candidate_that_fails_in_a_batch_leaves_the_others_alone(run_of):
    runs = [run_of(constant) for constant in (1.0, -1.0, 3.0)]
    assert evaluate_batch(runs)
    results = [run.finish() for run in runs]
    assert runs[0].plan.asked == [(3, [0, 1, 2, 3])]  # none was asked for alone
    assert [one.method for one in results] == ["scripted", "fit", "scripted"]
    np.testing.assert_array_equal(results[0].test_score, np.arange(4) + 1.0)
    np.testing.assert_array_equal(results[2].test_score, np.arange(4) + 3.0)
    np.testing.assert_allclose(results[1].test_score, fits(-1.0))
    assert results[1].reason == "it is lost"


def test_folds_of_before_a_failure_are_dropped_or_stay(run_of):
    """Those that were reported stay; a plan that evaluates all at once has reported none."""
    np.testing.assert_allclose(run_of(-1.0).finish().test_score, fits(-1.0))


def test_folds_that_were_reported_stay(run_of):
    score = run_of(-1.0, ByFold, cache=ModelCache()).finish().test_score
    np.testing.assert_allclose(score, [-1.0, 0.0, *fits(-1.0)[2:]])


def test_an_engine_that_was_asked_for_raises_its_error(run_of):
    run = run_of(-1.0, method="treecv")
    with pytest.raises(ValueError, match="a model is lost"):
        run.finish()
    with pytest.raises(ValueError, match="a model is lost"):
        run.predict("predict")


def test_predictions_fall_back_too(run_of):
    np.testing.assert_array_equal(run_of(2.0).predict("predict"), np.full(20, 2.0))


def test_only_missing_folds_are_asked_for(run_of):
    run = run_of(5.0, ByFold, cache=ModelCache(), report="folds")
    events = run.events()
    next(events)
    events.close()
    again = run_of(5.0)
    np.testing.assert_array_equal(again.finish().test_score, np.arange(4) + 5.0)
    first, second = run.plan.asked
    assert first == (1, [0, 1, 2, 3]) and second == (1, [1, 2, 3])
    assert again.cost.n_updates == 5 * len(second[1]) and again.cost.n_needed == 20


@pytest.mark.parametrize("fails", [(0,), (1,), (0, 1)], ids=str)
def test_a_candidate_that_fails_in_a_repeat_of_a_batch_is_refitted(run_of, fails, monkeypatch):
    options = {"n_repeats": 2, "shuffle": True, "random_state": 0}
    runs = [run_of(constant, **options) for constant in (1.0, -1.0)]
    evaluate = Scripted.evaluate

    def in_some_repeats(plan, work):
        for event in evaluate(plan, work):
            is_failed = isinstance(event, Failed)
            if is_failed and work.repeat.number not in fails:
                event = plan.fold(event.candidate, 2, np.array([-9.0]).view(np.uint8))
            yield event

    monkeypatch.setattr(Scripted, "evaluate", in_some_repeats)
    assert evaluate_batch(runs)
    first, second = (run.finish() for run in runs)
    assert first.method == "scripted" and second.method == "fit"
    cuts = [repeat.cut for repeat in runs[1].request.cross_validation.repeats]
    expected = [
        [np.mean((Y[cut.test_rows(chunk)] + 1) ** 2) for chunk in range(N_FOLDS)] for cut in cuts
    ]
    begin = N_FOLDS * fails[0]  # repeats before are of the plan
    np.testing.assert_allclose(
        np.sort(second.test_score[begin:]), np.sort(np.ravel(expected)[begin:])
    )


def test_what_is_precomputed_is_revealed_part_by_part(run_of):
    run = run_of(1.0, report="folds")
    other = run_of(2.0)
    assert evaluate_batch([run, other])
    seen = [run.book.n_scored for _ in run.events()]
    assert seen == [1, 2, 3, 4] and run.book.is_complete
    assert run.n_bytes_precomputed == 0 < other.n_bytes_precomputed


@pytest.mark.parametrize("model", [Ridge(), PegasosClassifier()], ids=["exact", "treecv"])
def test_a_batch_of_repeats_has_the_row_losses_of_each_alone(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X[:, 0] if isinstance(model, Ridge) else X[:, 0] > 0
    models = [clone(model).set_params(alpha=alpha) for alpha in (0.1, 1.0, 10.0)]
    options = {"cv": 3, "n_repeats": 2, "row_losses": True, "random_state": 0}
    together = tree_cross_validate_many(models, X, y, **options)
    for one, result in zip(models, together, strict=True):
        alone = tree_cross_validate(one, X, y, **options)
        np.testing.assert_allclose(result.test_score, alone.test_score, rtol=1e-12)
        np.testing.assert_allclose(result.row_losses, alone.row_losses, rtol=1e-5, atol=1e-12)


def test_no_second_is_counted_twice(monkeypatch):
    """Rows take a tenth of a second to be prepared."""
    padded = Data._padded

    def slowly(*args):
        sleep(0.1)
        return padded(*args)

    monkeypatch.setattr(Data, "_padded", slowly)
    began = perf_counter()
    result = tree_cross_validate(PegasosClassifier(), X, Y > 10, cv=2)
    assert 0.1 < result.seconds_prepare
    assert result.seconds + result.seconds_prepare < perf_counter() - began
