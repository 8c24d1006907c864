"""Figures show the numbers that the store holds."""

from __future__ import annotations

import importlib.util
import json
import sys

from ids import said
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pytest
from scipy import stats
from sklearn.model_selection import KFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.tree import DecisionTreeClassifier
from sqlalchemy import delete
from studies import searched

from optuna_treecv import PegasosClassifier
from optuna_treecv import select
from optuna_treecv.storage.tables import FOLD_SCORES

plotly = pytest.importorskip("plotly")
from optuna_treecv.reporting import evaluations  # noqa: E402
from optuna_treecv.reporting import figures as report  # noqa: E402
from optuna_treecv.reporting import history  # noqa: E402
from optuna_treecv.reporting.evaluations import Evaluations  # noqa: E402

LOG = FloatDistribution(1e-6, 1e3, log=True)
PLOTS = [report.plot_choice, report.plot_fold_scores, report.plot_parameters]


def trace_of(figure, name, axis="x"):
    (found,) = [t for t in figure.data if t.name.startswith(name) and (t.xaxis or "x") == axis]
    return found


def title_of(figure):
    return figure.layout.title.text


def spoken(figure):
    return [annotation.text for annotation in figure.layout.annotations]


def parameters_of(filled):
    return report.plot_parameters(filled.study, filled.store)


def fold_scores_of(filled, **options):
    return report.plot_fold_scores(filled.study, filled.store, **options)


def choice_of(filled, **options):
    return report.plot_choice(filled.study, filled.store, **options)


def one_parameter(filled, values, **fields):
    for i, scores in enumerate(values):
        filled.add(scores, {"alpha": 10.0 ** (i - 3)}, {"alpha": LOG}, **fields)


@pytest.mark.parametrize("n_repeats", [1, 3])
def test_error_bars_are_standard_errors_of_the_fold_mean(fill, n_repeats):
    """Repeats do not narrow them."""
    filled = fill(n_repeats=n_repeats)
    scores = np.array([[0.1, 0.2, 0.3, 0.8], [0.0, 0.0, 0.5, 0.5]])
    one_parameter(filled, np.tile(scores, n_repeats))
    figure = parameters_of(filled)
    trace = trace_of(figure, "complete")
    np.testing.assert_allclose(trace.x, [1e-3, 1e-2])
    np.testing.assert_allclose(trace.y, [0.35, 0.25])
    # Computed by hand: sqrt((.25^2 + .15^2 + .05^2 + .45^2) / 4) / sqrt(4), and 0.25 / 2.
    np.testing.assert_allclose(trace.error_y.array, [np.sqrt(0.29) / 4, 0.125])
    assert trace.error_y.symmetric is None
    assert trace.error_y.type in (None, "data")
    assert "std / √folds" in title_of(figure)
    assert "std / √folds" in trace.hovertemplate
    np.testing.assert_allclose(trace.customdata[:, 2], [np.sqrt(0.29) / 4, 0.125])


def test_pruned_trials_stand_apart_with_the_error_of_their_folds(fill):
    filled = fill(n_folds=10)
    one_parameter(filled, [np.linspace(0, 1, 10)])
    filled.add([0.4, 0.6], {"alpha": 1.0}, {"alpha": LOG}, state="pruned")
    figure = parameters_of(filled)
    trace = trace_of(figure, "pruned")
    assert (trace.x, list(trace.y)) == ((1.0,), [0.5])
    np.testing.assert_allclose(trace.error_y.array, [0.1 / np.sqrt(2)])
    assert len(trace_of(figure, "complete").x) == 1


def test_the_best_is_marked(fill):
    for direction, best in (("minimize", 1), ("maximize", 2)):
        filled = fill(direction=direction)
        one_parameter(filled, [[0.3, 0.3], [0.1, 0.1], [0.9, 0.7]])
        filled.add([0.0, 2.0], {"alpha": 1.0}, {"alpha": LOG}, state="pruned")
        figure = parameters_of(filled)
        trace = trace_of(figure, "best")
        assert trace.name == f"best: trial {best}"
        np.testing.assert_allclose(trace.x, [10.0 ** (best - 3)])
        assert len(trace_of(figure, "complete").x) == 3


@pytest.mark.parametrize("direction, infinity", [("minimize", np.inf), ("maximize", -np.inf)])
def test_infinite_values_stand_at_the_edge(fill, direction, infinity):
    filled = fill(direction=direction)
    one_parameter(filled, [[0.3, 0.5], [0.1, 0.3], [infinity, 0.1]])
    figure = parameters_of(filled)
    trace, finite = trace_of(figure, "infinite"), trace_of(figure, "complete")
    assert list(trace.x) == [0.1]
    assert len(finite.x) == 2
    if direction == "minimize":
        assert trace.y[0] > max(finite.y)
        assert trace.marker.symbol == "triangle-up"
    else:
        assert trace.y[0] < min(finite.y)
        assert trace.marker.symbol == "triangle-down"
    assert trace.error_y.array is None
    assert trace.customdata[0, 1] == infinity  # the hover text shows the true value


def test_a_value_far_off_does_not_squeeze_the_others(fill):
    filled = fill()
    one_parameter(filled, [[0.3, 0.5], [0.1, 0.3], [0.2, 0.3], [1e100, 1e90]])
    figure = parameters_of(filled)
    assert trace_of(figure, "infinite or far off").y[0] < 1
    assert list(trace_of(figure, "infinite or far off").customdata[:, 0]) == [3]
    assert figure.layout.yaxis.type is None


def test_losses_of_many_sizes_have_a_log_axis(fill):
    filled = fill(scoring="squared_error")
    one_parameter(filled, [[0.01, 0.01], [0.1, 0.3], [3.0, 5.0]])
    figure = parameters_of(filled)
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.yaxis.title.text == "squared_error"
    filled = fill(scoring="error")
    one_parameter(filled, [[0.0, 0.0], [0.1, 0.3], [3.0, 5.0]])
    assert parameters_of(filled).layout.yaxis.type is None


def test_axes_are_those_of_the_distributions(fill):
    filled = fill()
    distributions = {
        "a_log": LOG,
        "b_int_log": IntDistribution(1, 1000, log=True),
        "c_linear": FloatDistribution(-1, 1),
        "d_grid": CategoricalDistribution([1e-2, 1e-4, 1e-3]),
        "e_kind": CategoricalDistribution(["z", None, True]),
    }
    for i in range(3):
        params = {
            "a_log": 10.0**-i,
            "b_int_log": 10**i,
            "c_linear": i / 2,
            "d_grid": [1e-2, 1e-4, 1e-3][i],
            "e_kind": ["z", None, True][i],
        }
        filled.add([0.1, 0.2, 0.1 * i], params, distributions)
    figure = parameters_of(filled)
    layout = figure.layout
    axes = [layout.xaxis, layout.xaxis2, layout.xaxis3, layout.xaxis4, layout.xaxis5]
    assert [axis.title.text for axis in axes] == sorted(distributions)
    assert [axis.type for axis in axes] == ["log", "log", None, "category", "category"]
    assert list(axes[3].categoryarray) == ["0.0001", "0.001", "0.01"]
    assert list(axes[4].categoryarray) == ["z", "None", "True"]
    assert list(trace_of(figure, "complete", "x4").x) == ["0.01", "0.0001", "0.001"]
    assert list(trace_of(figure, "complete", "x5").x) == ["z", "None", "True"]
    shown = [trace for trace in figure.data if trace.name == "complete" and trace.showlegend]
    assert len(shown) == 1


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_two_numbers_span_a_plane(fill, direction):
    filled = fill(direction=direction, n_folds=4)
    sign = 1 if direction == "minimize" else -1
    space = {"a": LOG, "n": IntDistribution(1, 9)}
    for i, value in enumerate((0.1, 0.2, 0.3, 0.4, 5.0)):
        filled.add([sign * value] * 4, {"a": 10.0**-i, "n": i + 1}, space)
    filled.add([0.5, 0.5], {"a": 7.0, "n": 9}, space, state="pruned")
    filled.add([sign * np.inf] * 4, {"a": 8.0, "n": 8}, space)
    figure = parameters_of(filled)
    layout = figure.layout
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == ("a", "n")
    assert (layout.xaxis.type, layout.yaxis.type) == ("log", None)
    trace = trace_of(figure, "complete")
    np.testing.assert_allclose(trace.x, [1, 0.1, 0.01, 0.001, 1e-4])
    assert list(trace.y) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(trace.marker.color, sign * np.array([0.1, 0.2, 0.3, 0.4, 5.0]))
    # The worst quarter has one colour, and Cividis is brightest, for the best, at its end.
    assert sorted([trace.marker.cmin, trace.marker.cmax], key=abs) == [
        pytest.approx(sign * 0.1),
        pytest.approx(sign * 0.4),
    ]
    assert trace.marker.reversescale == (direction == "minimize")
    assert trace.marker.colorbar.title.text == "error"
    assert trace.customdata[1][0] == 1 and trace.customdata[1][1] == pytest.approx(sign * 0.2)
    assert list(trace_of(figure, "best: trial 0").x) == [1.0]
    assert list(trace_of(figure, "pruned").y) == [9]
    assert list(trace_of(figure, "infinite").y) == [8]


def test_choices_that_look_alike_keep_all_digits_and_span_no_plane(fill):
    filled = fill()
    space = {"a": CategoricalDistribution([0.12345, 0.12346]), "b": LOG}
    filled.add([0.1, 0.2], {"a": 0.12345, "b": 1.0}, space)
    figure = parameters_of(filled)
    assert list(figure.layout.xaxis.categoryarray) == ["0.12345", "0.12346"]
    assert figure.layout.xaxis2.title.text == "b"


def test_a_parameter_that_not_all_trials_have(fill):
    filled = fill()
    filled.add([0.1, 0.2], {"a": 1.0}, {"a": LOG})
    filled.add([0.3, 0.4], {"a": 2.0, "b": 5.0}, {"a": LOG, "b": LOG})
    figure = parameters_of(filled)
    assert list(trace_of(figure, "complete", "x").x) == [1.0, 2.0]
    assert list(trace_of(figure, "complete", "x2").x) == [5.0]
    assert list(trace_of(figure, "complete", "x2").y) == [pytest.approx(0.35)]


def test_more_parameters_than_there_is_room_for(fill):
    filled = fill()
    names = "abcdefgh"
    filled.add([0.1, 0.2], dict.fromkeys(names, 1.0), dict.fromkeys(names, LOG))
    figure = parameters_of(filled)
    assert "the first 6 of 8" in title_of(figure)
    assert len({trace.xaxis for trace in figure.data}) == 6


def test_few_folds_are_boxes_best_first(fill, monkeypatch):
    asked_for = []

    def load_fold_scores(store, **kwargs):
        asked_for.extend(kwargs["runs"])
        return history.load_fold_scores(store, **kwargs)

    monkeypatch.setattr(evaluations, "load_fold_scores", load_fold_scores)
    filled = fill()
    all_scores = [[0.5, 0.7, 0.6], [0.1, 0.3, 0.2], [0.2, 0.4, 0.3], [0.0, np.inf, 0.0]]
    one_parameter(filled, all_scores)
    figure = fold_scores_of(filled, n_best=2)
    assert [trace.type for trace in figure.data] == ["box", "box"]
    np.testing.assert_allclose(figure.data[0].y, all_scores[1])
    np.testing.assert_allclose(figure.data[1].y, all_scores[2])
    # std of .1, .2, .3 is sqrt(.02 / 3) = 0.0816; divided by sqrt(3) it is 0.0471.
    assert figure.data[0].name == "1<br>0.200<br>± 0.047"
    runs = [trial.user_attrs["treecv"]["run"] for trial in filled.study.trials]
    assert asked_for == runs[1:3]  # all scores of a study might not fit into memory
    assert "std / √folds" in title_of(figure)
    assert len(fold_scores_of(filled).data) == 3  # not the infinite one
    filled = fill(direction="maximize")
    one_parameter(filled, all_scores[:3])
    figure = fold_scores_of(filled, n_best=1)
    np.testing.assert_allclose(figure.data[0].y, all_scores[0])


def differences_of(figure):
    """Return labels, means and standard errors of the trials, and what is written beside them."""
    best, others = [trace for trace in figure.data if trace.type == "scatter"]
    assert (list(best.y), list(best.text)) == ([0], ["the best"])
    return [best.x[0], *others.x], others.y, others.error_y.array, others.text


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_errors_of_leave_one_out_are_paired_differences(fill, direction):
    """Compare with the paired t statistic of SciPy."""
    rng = np.random.default_rng(0)
    first = (rng.uniform(size=400) < 0.3).astype(float)
    second = np.where(rng.uniform(size=400) < 0.05, 1 - first, first)
    scores = {"minimize": [second, first], "maximize": [1 - second, 1 - first]}[direction]
    filled = fill(direction=direction)
    one_parameter(filled, scores)
    figure = fold_scores_of(filled)
    assert "Differences to the best trial" in title_of(figure)
    labels, means, errors, texts = differences_of(figure)
    best = filled.study.best_trial.number
    other = 1 - best
    assert [label.split("<br>")[0] for label in labels] == [str(best), str(other)]
    np.testing.assert_allclose(means, [np.mean(scores[other] - scores[best])])
    ratio = abs(means[0] / errors[0])
    paired = abs(stats.ttest_rel(scores[other], scores[best]).statistic)
    assert ratio == pytest.approx(paired, rel=1e-9)
    assert list(texts) == [f"{ratio:.1f} s.e."]
    alone = np.std(scores[best]) / np.sqrt(400)
    assert errors[0] < alone / 2  # which is why the difference is shown
    assert f"minus that of trial {best}" in figure.layout.yaxis.title.text


@pytest.mark.parametrize(
    ("other", "mean", "error", "text"),
    [
        ([0.0] * 40 + [1.0] * 20, 1 / 3, np.sqrt(2 / 9 * 180 / 179 / 60), None),
        ([0.0] * 60, 0, 0, "equal"),
    ],
)
def test_repeats_do_not_narrow_the_errors_of_differences(fill, other, mean, error, text):
    filled = fill(n_repeats=3, n_folds=60)
    one_parameter(filled, [[0.0] * 180, other * 3])
    _, means, errors, texts = differences_of(fold_scores_of(filled))
    np.testing.assert_allclose(means, [mean])
    np.testing.assert_allclose(errors, [error])
    assert text is None or list(texts) == [text]


@pytest.mark.slow
@pytest.mark.parametrize(
    "other", [{"fingerprint": "f" * 64}, {"random_state": "1"}, {"cv": "KFold(100)"}], ids=said
)
def test_folds_that_do_not_pair_are_left_out(fill, other):
    filled = fill()
    one_parameter(filled, [[0.0] * 100, [1.0] + [0.0] * 99])
    one_parameter(filled, [[1.0] * 2 + [0.0] * 98], **other)
    figure = fold_scores_of(filled)
    labels, means, _, _ = differences_of(figure)
    assert [label.split("<br>")[0] for label in labels] == ["0", "1"]
    np.testing.assert_allclose(means, [0.01])
    assert "1 of the best 3 trials have other rows or folds" in title_of(figure)
    filled = fill()
    one_parameter(filled, [[0.0] * 100])
    one_parameter(filled, [[1.0] * 2 + [0.0] * 98], **other)
    assert spoken(fold_scores_of(filled)) == ["No second trial has the same folds."]
    figure = choice_of(filled)
    assert spoken(figure) == ["No second trial has the same folds."]


def test_figures_of_attributes_are_those_of_the_store(tmp_path, binary):
    """Without a store, the figures show the same numbers, to the 6 digits of the attributes."""
    store, grid = f"sqlite:///{tmp_path}/store.db", {"alpha": [1e-3, 1e-2, 0.1, 1.0]}
    options = {"cv": 16, "n_repeats": 2, "report": "mean", "study": {"pruner": PruneThird()}}
    _, study = searched(PegasosClassifier(), binary, grid, store=store, **options)
    assert [trial.state.name for trial in study.trials].count("PRUNED") == 1
    with_store, without = report.plot_parameters(study, store), report.plot_parameters(study)
    assert title_of(without) == title_of(with_store)
    assert len(without.data) == len(with_store.data) > 0
    for one, other in zip(without.data, with_store.data, strict=True):
        assert one.name == other.name
        np.testing.assert_allclose(one.x, other.x, rtol=1e-5)
        np.testing.assert_allclose(one.y, other.y, rtol=1e-5)
        if one.error_y.array is not None:
            np.testing.assert_allclose(one.error_y.array, other.error_y.array, rtol=1e-5)


class PruneThird(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return trial.number == 2 and len(trial.intermediate_values) > 3


def test_many_folds_are_a_curve_of_few_numbers(fill):
    filled = fill(scoring="squared_error")
    scores = np.random.default_rng(0).chisquare(1, size=(2, 5003))
    one_parameter(filled, scores)
    figure = fold_scores_of(filled)
    for trace in figure.data:
        number = int(trace.name.split(":")[0])
        assert len(trace.x) + len(trace.y) <= 2000
        assert np.isin(trace.x, scores[number]).all()
        share_up_to = [100 * np.mean(scores[number] <= x) for x in trace.x]
        np.testing.assert_allclose(share_up_to, trace.y, atol=100 / 5003)
        assert (trace.x[0], trace.x[-1]) == (scores[number].min(), scores[number].max())
    assert figure.layout.xaxis.type is None
    assert len(figure.to_json()) < 100_000
    filled = fill(scoring="squared_error")  # with a heavy tail
    one_parameter(filled, [np.exp(np.random.default_rng(0).normal(size=2000, scale=4))])
    assert fold_scores_of(filled).layout.xaxis.type == "log"


def test_fold_scores_that_are_gone(fill):
    filled = fill()
    one_parameter(filled, [[0.1, 0.2], [0.3, 0.4]])
    with filled.database.writing() as session:
        gone = FOLD_SCORES.c.run == filled.study.trials[0].user_attrs["treecv"]["run"]
        session.execute(delete(FOLD_SCORES).where(gone))
    figure = fold_scores_of(filled)
    assert [list(trace.y) for trace in figure.data] == [[0.3, 0.4]]
    with filled.database.writing() as session:
        session.execute(delete(FOLD_SCORES))
    figure = fold_scores_of(filled)
    assert spoken(figure) == ["The fold scores are not in the store."]


@pytest.mark.parametrize("n_best", [0, 2.0])
def test_n_best_must_be_a_number_of_trials(fill, n_best):
    with pytest.raises(ValueError, match="n_best must be a number of trials"):
        report.plot_fold_scores(fill().study, "any", n_best)


@pytest.mark.slow
def test_trials_that_are_missing_in_the_store_are_counted(fill):
    filled = fill()
    one_parameter(filled, [[0.1, 0.2], [0.1, 0.2]])
    one_parameter(filled, [[0.1, 0.2]], stored=False)
    for plot in PLOTS:
        figure = plot(filled.study, filled.store)
        assert "1 of 3 finished trials are not in the store" in title_of(figure)


@pytest.mark.slow
def test_figures_are_small_and_fit_into_a_card(fill):
    filled = fill()
    for i in range(100):
        filled.add([0.1, 0.2, np.inf if i % 7 == 0 else 0.1], {"a": 1.0 + i}, {"a": LOG})
    for plot in PLOTS:
        figure = plot(filled.study, filled.store)
        text = figure.to_json()
        assert len(text) < 20_000
        json.loads(text, parse_constant=pytest.fail)  # NaN is not valid JSON
        assert figure.layout.height is None  # the card decides: it is 450 pixels high
        assert figure.layout.template.layout.to_plotly_json() == {}


@pytest.mark.parametrize(
    "mean, error, text",
    [
        (0.02812, 0.00691, "0.0281 ± 0.0069"),
        (0.5, 0.0, "0.5 ± 0"),
        (1234.5, 12.3, "1234 ± 12"),
        (-0.91234, 0.1, "-0.91 ± 0.10"),
        (1e100, 1e99, "1e+100 ± 1e+99"),
    ],
)
def test_estimates_have_the_digits_of_their_errors(mean, error, text):
    assert report.plus_minus(mean, error) == text


def test_without_plotly_one_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    spec = importlib.util.spec_from_file_location("report_anew", report.__file__)
    with pytest.raises(ImportError, match=r"needs plotly: pip install 'optuna-treecv\[dashboard"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# The choice.


def chosen(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_choice_is_that_of_select(direction, binary, tmp_path):
    """Compare with ``select`` and with SciPy's paired t-tests; store and objective agree."""
    scoring = {"minimize": "error", "maximize": "accuracy"}[direction]
    store = f"sqlite:///{tmp_path / 'store.db'}"
    space = {"alpha": FloatDistribution(1e-4, 10.0, log=True)}
    options = {"cv": 8, "scoring": scoring, "store": store}
    objective, study = searched(PegasosClassifier(), binary, space, 12, **options)
    choice = select(study, objective, rule="one_se")
    figure = report.plot_choice(study, store, n_best=6)
    assert figure.to_json() == report.plot_choice(study, objective, n_best=6).to_json()
    best = study.best_trial.number
    assert list(chosen(figure, "the best").y) == [f"trial {best}"]
    scores = {t.number: objective.evaluate(t.params).test_score for t in study.trials}
    drawn = {}
    for name in ("not distinguishable", "worse"):
        for trace in (one for one in figure.data if one.name == name):
            ends = zip(trace.y, trace.x, trace.error_x.array, strict=True)
            drawn |= {int(y.split()[1]): (x, half, name) for y, x, half in ends}
    assert len(drawn) == 5
    for number, (mean, half, name) in drawn.items():
        paired = stats.ttest_rel(scores[number], scores[best]).confidence_interval(0.95)
        np.testing.assert_allclose((mean - half, mean + half), paired, atol=1e-12)
        assert (name == "worse") == (not paired.low <= 0 <= paired.high)
    if choice.trial.number in (best, *drawn):
        simplest = chosen(figure, "the simplest within one standard error")
        assert list(simplest.y) == [f"trial {choice.trial.number}"]
    title = title_of(figure)
    low, high = select(study, objective).interval.low, select(study, objective).interval.high
    assert f"best: trial {best}, {scoring} " in title and f"({low:.2f} to {high:.2f})" in title
    assert f"{len(choice.not_distinguishable)} of 11 others not distinguishable" in title
    assert "baseline: " in title and "by always predicting the most frequent class" in title


@pytest.mark.parametrize(
    ("cv", "n_epochs", "scoring"), [(2, 1, "roc_auc"), (6, 2, "hinge"), (6, 7, "error")]
)
def test_the_store_knows_the_range_of_a_score_and_the_number_of_trained_rows(
    cv, n_epochs, scoring, binary, tmp_path
):
    options = {"cv": cv, "n_epochs": n_epochs, "scoring": scoring}
    options["store"] = store = f"sqlite:///{tmp_path / 'store.db'}"
    objective, study = searched(PegasosClassifier(), binary, {"alpha": LOG}, 3, **options)
    ours, stored = objective.evaluator.contest(study), Evaluations(study, store).contest()
    assert stored.score_range == ours.score_range is not None
    assert stored.n_trained == ours.n_trained
    assert stored.test_share == pytest.approx(ours.test_share)
    facts = study.user_attrs["treecv_evaluation"]
    assert facts["n_updates_standard"] == n_epochs * 83 * (cv - 1)


INFINITE = [([0.1, np.inf], {})]
NOTHING_TO_DRAW = [
    ("plot_choice", [([0.2], {}), ([0.1], {})], "The scores of two or more folds are needed, but"),
    ("plot_choice", [([0.1, 0.2, 0.4], {})], "No second trial has the same folds."),
    ("plot_fold_scores", INFINITE, "No finished trial has a finite value."),
    *((plot.__name__, [], "The study has no finished trial yet.") for plot in PLOTS),
    *(
        (plot.__name__, [([0.1, 0.2], {"stored": False})] * 2, "None of the 2 finished trials is")
        for plot in PLOTS
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("plot", "trials", "text"), NOTHING_TO_DRAW)
def test_a_figure_says_why_it_is_empty(fill, plot, trials, text):
    filled = fill()
    filled.study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL))
    for scores, fields in trials:
        one_parameter(filled, [scores], **fields)
    (found,) = spoken(getattr(report, plot)(filled.study, filled.store))
    assert found.startswith(text)


def test_a_figure_of_another_study_says_why_it_is_empty(fill):
    filled = fill()
    filled.add([0.1, 0.2])
    assert spoken(parameters_of(filled)) == ["The study has no hyper-parameters."]
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    text = "None of the 2 finished trials was evaluated by a treecv_objective."
    assert spoken(report.plot_parameters(study)) == [text]
    two = optuna.create_study(directions=["minimize", "minimize"])
    two.add_trial(optuna.trial.create_trial(values=[0.1, 0.2]))
    assert spoken(report.plot_choice(two, filled.store))[0].startswith("None of the 1 finished")
    with pytest.raises(ValueError, match="^store must be either the store with"):
        report.plot_choice(filled.study, None)
    with pytest.raises(ValueError, match="store must be the store of the objective"):
        report.plot_fold_scores(filled.study, None)


def test_only_infinite_and_pruned_trials_stand_at_the_edge(fill):
    filled = fill()
    one_parameter(filled, [[0.1, np.inf]])
    assert list(parameters_of(filled).data[0].y) == [0]
    one_parameter(filled, [[0.1, 0.2]], state="pruned")
    assert len(parameters_of(filled).data) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cv", "share"),
    [
        (ShuffleSplit(6, test_size=0.1, train_size=0.3, random_state=0), None),
        (TimeSeriesSplit(6), None),
        (KFold(6), 83 * 6 / (83 * 5) - 1),
    ],
    ids=["splits", "series", "folds"],
)
def test_the_store_gives_no_interval_that_it_cannot_know(cv, share, binary, tmp_path):
    """It does not say how many rows a split tests."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    depth = {"max_depth": IntDistribution(1, 5)}
    tree = DecisionTreeClassifier(random_state=0)
    _, study = searched(tree, binary, depth, 4, cv=cv, store=store)
    assert Evaluations(study, store).contest().test_share == (share and pytest.approx(share))
    report.plot_choice(study, store)


@pytest.mark.slow
def test_a_choice_without_a_direction_has_no_simplest_trial(fill):
    filled = fill()
    for i, scores in enumerate(([0.1, 0.2, 0.3], [0.1, 0.21, 0.3])):
        filled.add(scores, {"gamma": 1.0 + i}, {"gamma": FloatDistribution(0, 9)})
    names = {trace.name for trace in choice_of(filled).data}
    assert names == {"the best", "not distinguishable"}
    figure = choice_of(filled, simpler={"gamma": "larger"})
    assert list(chosen(figure, "the simplest within one standard error").y) == ["trial 1"]
    with pytest.raises(ValueError, match="^simpler must name parameters of the study"):
        choice_of(filled, simpler={"alpha": "larger"})
