"""A study's note and figures, as text and in a browser."""

from __future__ import annotations

from datetime import datetime
from datetime import timedelta
import importlib.util
from pathlib import Path
import re
import runpy
import sys

from browser import BROWSER
from browser import page
from browser import served
from browser import text_of
from filled_study import FilledStudy
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
import pytest
from scipy import stats
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from studies import searched

optuna_dashboard = pytest.importorskip("optuna_dashboard")
pandas = pytest.importorskip("pandas")
pytest.importorskip("plotly")
from optuna_treecv import PegasosClassifier  # noqa: E402
from optuna_treecv.core.settings import METHODS  # noqa: E402
from optuna_treecv.history import load_fold_scores  # noqa: E402
from optuna_treecv.reporting import dashboard  # noqa: E402
from optuna_treecv.reporting import figures as report  # noqa: E402
from optuna_treecv.reporting.evaluations import Evaluations  # noqa: E402
from optuna_treecv.reporting.note import clock_in_words  # noqa: E402
from optuna_treecv.reporting.note import METHODS_IN_WORDS  # noqa: E402
from optuna_treecv.study.records import PROGRESS_ATTRIBUTE  # noqa: E402

STORE = "the store"
FIGURES = {
    "treecv-parameters": "Value against each hyper-parameter",
    "treecv-choice": "Differences to the best trial",
    "treecv-fold-scores": "Fold scores of the best trials",
}


@pytest.fixture
def filled(fill):
    return with_trials(fill(n_folds=10))


@pytest.fixture
def without_figures(monkeypatch):
    """Publish notes alone, because figures take most of the time."""
    monkeypatch.setattr(report, "FIGURES", {})


def with_trials(filled):
    """Return a study of 12 trials: trial 7 is the best, 3 is infinite, 5 is pruned."""
    distributions = {
        "alpha": FloatDistribution(1e-6, 1e6, log=True),
        "kind": CategoricalDistribution(["a|b", "c"]),
    }
    rng = np.random.default_rng(0)
    for i in range(12):
        scores = 0.2 + 0.01 * abs(i - 7) + 0.02 * rng.normal(size=10)
        if i == 3:
            scores[4] = np.inf
        params = {"alpha": 10.0 ** (i - 6), "kind": ["a|b", "c"][i % 2]}
        pruned = {"state": "pruned"} if i == 5 else {}
        filled.add(
            scores[: 4 if pruned else 10],
            params,
            distributions,
            n_updates=4000 - 100 * i,
            n_updates_saved=100 * i,
            **pruned,
        )
    return filled


def note_of(filled):
    """Publish a study and return its note."""
    dashboard.publish(filled.study, filled.store)
    return optuna_dashboard.get_note(filled.study)


def facts_of(note):
    """Return the rows of two cells, by the first one."""
    return dict(row for row in cells(note) if len(row) == 2)


def cells(note):
    """Return the rows of a note's tables."""
    rows = [line for line in note.splitlines() if line.startswith("| ")]
    return [[cell.replace("&emsp;", "").strip() for cell in row.split("|")[1:-1]] for row in rows]


@pytest.mark.usefixtures("without_figures")
@pytest.mark.slow
def test_the_note_names_learner_edge_and_optunas_time(binary, tmp_path):
    store = f"sqlite:///{tmp_path / 'store.db'}"
    name = "sgdclassifier__alpha"
    _, study = searched(
        make_pipeline(StandardScaler(), SGDClassifier(random_state=0)),
        binary,
        {name: FloatDistribution(1e-4, 1e9, log=True)},
        candidates=[{name: alpha} for alpha in (1e-4, 1e8, 1e9)],
        method="fit",
        cv=2,
        store=store,
    )
    dashboard.publish(study, store)
    note = optuna_dashboard.get_note(study)
    facts = facts_of(note)
    assert facts["**learner**"] == "`SGDClassifier after StandardScaler`"
    assert facts["**method**"] == "fit (the estimator is refitted per fold), seed 0"
    assert "# Now trial 0: SGDClassifier after StandardScaler with sgdclassifier__alpha=" in note
    assert (
        "sgdclassifier__alpha is 0.0001 at the lower end of its range (0.0001 to 1e+09); a wider "
        "range may contain a better value."
    ) in note
    assert re.search(
        r"from the first start to the last end, of which [\d.e-]+ s \(\d+%\) in Optuna$",
        facts["**time**"],
    )


def trial_with(number, start, seconds, store):
    """Return a trial that lasted some seconds."""
    begin = datetime(2026, 1, 1) + timedelta(seconds=start)
    return optuna.trial.FrozenTrial(
        number,
        optuna.trial.TrialState.COMPLETE,
        0.0,
        begin,
        begin + timedelta(seconds=seconds),
        params={},
        distributions={},
        user_attrs={"treecv": {"seconds_store": store}},
        system_attrs={},
        intermediate_values={},
        trial_id=number,
    )


def test_optunas_time_is_what_remains():
    trials = {
        0: trial_with(0, start=0, seconds=5, store=0.5),
        1: trial_with(1, start=6, seconds=4, store=0.5),
        2: trial_with(2, start=110, seconds=2, store=0),  # after a pause of 100 s
    }
    frame = pandas.DataFrame({"seconds": [3.0, 2.0, 1.0], "seconds_prepare": [1.0, 0.0, 0.0]})
    whole = "112 s from the first start to the last end"
    said = "of which 4 s (4%) in Optuna and 100 s in pauses"  # 112 - 100 - 3 - 2 - 1 - 1 - 0.5 * 2
    evaluations = Evaluations.__new__(Evaluations)
    evaluations.trials, evaluations.frame = trials, frame
    assert clock_in_words(evaluations) == f"{whole}, {said}"
    # What the evaluation took is not known of all, or workers ran at the same time.
    evaluations.frame = frame[:2]
    assert clock_in_words(evaluations) == whole
    evaluations.frame = frame
    trials[1] = trial_with(1, start=4, seconds=4, store=0)
    assert clock_in_words(evaluations) == whole


class StopsAfterOneFold(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return trial.number == 1


@pytest.mark.usefixtures("without_figures")
@pytest.mark.slow
def test_the_note_says_what_pruning_saves_of_fits(binary, tmp_path):
    store = f"sqlite:///{tmp_path / 'store.db'}"
    X, y = binary
    options = {"cv": TimeSeriesSplit(3, test_size=10), "report": "folds", "store": store}
    options["study"] = {"pruner": StopsAfterOneFold()}
    _, study = searched(
        lambda trial: DecisionTreeClassifier(max_depth=1 + trial.number),
        (X, y),
        None,
        2,
        **options,
    )
    dashboard.publish(study, store)
    facts = facts_of(optuna_dashboard.get_note(study))
    n = len(y)
    done, all_of_both = (n - 30) + (n - 20) + (n - 10) + (n - 30), 2 * (3 * n - 60)
    assert facts["**row updates**"] == (
        f"{done:,} done, 0 saved by sharing, {all_of_both:,} without pruning and sharing"
    )


def test_every_method_has_words():
    assert set(METHODS_IN_WORDS) == {*METHODS, "chain"} - {"auto"}


def figures_of(study):
    attributes = study._storage.get_study_system_attrs(study._study_id)
    return optuna_dashboard._custom_plot_data.get_plotly_graph_objects(attributes)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.slow
def test_the_note_says_what_and_how_well(filled):
    note = note_of(filled)
    found = load_fold_scores(filled.store, study=filled.study)
    scores = found["score"][found["trial_number"] == 7]
    estimate = report.plus_minus(np.mean(scores), np.std(scores) / np.sqrt(10))
    assert f"## Best: trial 7, error {estimate}\n" in note
    assert "standard error of the fold mean, std / √folds" in note
    rows = cells(note)
    assert ["trial", "error", "minus the best", "alpha", "kind"] in rows
    assert ["7", estimate, "", "10", "c"] in rows
    best_five = rows[2:7]
    means = found.groupby("trial_number")["score"].mean().drop([3, 5]).sort_values()
    assert [int(row[0]) for row in best_five] == list(means.index[:5])
    assert {row[4] for row in best_five} <= {"a/b", "c"}  # "|" would end the cell
    facts = facts_of(note)
    assert facts["**data**"] == "1,234 rows × 5 features, fingerprint `0123456789ab`"
    assert facts["**learner**"] == "`PegasosClassifier`"
    assert facts["**folds**"] == "10 × 1 (`cv=10`)"
    assert (
        facts["**method**"]
        == "treecv (the folds share incremental training along one tree), seed 0"
    )
    assert facts["**score**"] == "error, minimize"
    assert facts["**trials**"] == "11 complete, 1 pruned, 1 of them infinite"
    # 12 * 4000 - 6600 done; 11 * 9000 + 9000 * 4 / 10 from scratch.
    assert facts["**row updates**"] == (
        "41,400 done, 6,600 saved by sharing (14%), 102,600 for k separate trainings"
    )
    trials = filled.study.trials
    clock = max(t.datetime_complete for t in trials) - min(t.datetime_start for t in trials)
    assert facts["**time**"] == (
        f"6 s of evaluation; {clock.total_seconds():.3g} s from the first start to the last end"
    )
    assert "**baseline**" not in facts  # the study does not know it


@pytest.mark.usefixtures("without_figures")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "baseline", "better"),
    [
        ("minimize", 0.35, "1 of 3 complete trials"),
        ("minimize", 0.25, "**no trial**"),
        ("maximize", 0.35, "2 of 3 complete trials"),
    ],
)
def test_the_note_compares_with_a_constant_prediction(fill, direction, baseline, better):
    filled = fill(direction=direction)
    for score in (0.3, 0.4, 0.5):
        filled.add([score] * 10)
    known = {"digest": "0", "baseline": baseline, "baseline_of": "the mean of y"}
    filled.study.set_user_attr("treecv_evaluation", known)
    assert facts_of(note_of(filled))["**baseline**"] == (
        f"{baseline} on all rows by always predicting the mean of y; better: {better}"
    )


@pytest.mark.usefixtures("without_figures")
@pytest.mark.slow
def test_the_note_says_how_sure_the_choice_is(fill):
    """Trial 1 is the best; trial 2 has a larger alpha, and is within one standard error."""
    filled = fill(n_updates_standard=9 * 1234)
    rng = np.random.default_rng(0)
    base = 0.2 + 0.05 * rng.normal(size=10)
    alpha = {"alpha": FloatDistribution(1e-6, 1e6, log=True)}
    for i, offset in enumerate((0.2, 0.0, 0.0005, 0.05)):
        filled.add(base + offset + 0.01 * rng.normal(size=10), {"alpha": 10.0**i}, alpha)
    best = filled.study.best_trial.number
    note = note_of(filled)
    assert "### How sure is the choice?" in note
    scores = load_fold_scores(filled.store, study=filled.study)
    folds = scores[scores.trial_number == best].score.to_numpy()
    half = stats.t.ppf(0.975, 9) * np.sqrt((1 / 10 + 1 / 9) * np.var(folds, ddof=1))
    assert f"**{folds.mean() - half:.3f} to {folds.mean() + half:.3f}**" in note
    assert "of a model that is trained on 1,111 other rows" in note
    near = 3 - best
    assert f"Not distinguishable from trial {best}, the best one: 1 trials ({near})." in note
    assert "Simplest trial within one standard error of the best: **trial 2** (alpha=100)." in note
    assert ('rule="one_se")  # now trial 2' in note) == (best != 2)
    assert "Differences are paired by folds" in note


@pytest.mark.usefixtures("without_figures")
@pytest.mark.slow
def test_settings_that_differ_are_all_named(fill):
    filled = fill()
    for i in range(10):
        filled.add([0.1, 0.2], n_rows=1000 + i % 5, random_state=str(i % 2))
    note = note_of(filled)
    facts = facts_of(note)
    assert facts["**data**"].count("rows") == 3
    assert facts["**data**"].endswith("; and 2 more")
    tree = "treecv (the folds share incremental training along one tree)"
    assert facts["**method**"] == f"{tree}, seed 0; {tree}, seed 1"


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "[here](javascript:alert(1)) ![](//a.bc/d.png) www.example.com http://a.bc me@a.bc",
    "x\n```\n# heading\n\n* item\r\u2028| a |",
    "`` tick ` <b> **bold** _b_ ~~s~~ $x$ $$y$$ &lt; \\",
    "`",
    f"a\n{dashboard.END}\n",
    f"{dashboard.BEGIN} {dashboard.END}",
    "|||",
]


def published(folder, name):
    """Return the note, without figures, of a study in which all names are this one."""
    filled = FilledStudy(
        f"sqlite:///{folder / 'store.db'}", n_folds=4, learner=name, scoring=name, cv=name
    )
    distributions = {name: CategoricalDistribution([name, 1.5]), "alpha": FloatDistribution(0, 1)}
    for i in range(3):
        scores = np.array([0.1, 0.2, 0.3, 0.2]) + 0.1 * i
        filled.add(scores, {name: name, "alpha": 0.1 * i}, distributions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "FIGURES", {})
        dashboard.publish(filled.study, filled.store)
        if dashboard.END in name:  # in place of the one before
            dashboard.publish(filled.study, filled.store)
    return optuna_dashboard.get_note(filled.study)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return published(tmp_path_factory.mktemp("plain"), "name")


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_are_shown_and_not_read_as_markdown(name, plain, tmp_path):
    """Outside of code nothing of a hostile name is left, and no name begins a line."""
    note = published(tmp_path, name)
    assert len(note.splitlines()) == len(plain.splitlines())
    assert [line[:5] for line in note.splitlines()] == [line[:5] for line in plain.splitlines()]
    assert [line.count("|") for line in note.splitlines() if line.startswith("| ")] == [
        line.count("|") for line in plain.splitlines() if line.startswith("| ")
    ]
    inside = note.partition(dashboard.BEGIN)[2].rpartition(dashboard.END)[0]
    outside = re.sub(r"```python\n.*?\n```\n?", "", inside, flags=re.DOTALL)
    outside = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)  # as CommonMark reads spans
    assert not re.search(r"[<>$~`@\[\]\\!]|_b|www|http|heading", outside)
    assert name.split()[0].replace("|", "/") in inside


@pytest.mark.slow
def test_publishing_again_replaces_and_keeps_what_the_user_wrote(filled, monkeypatch):
    study = filled.study
    optuna_dashboard.save_note(study, "Above.")
    dashboard.publish(study, filled.store)
    monkeypatch.setattr(report, "FIGURES", {})  # they take most of the time
    first = optuna_dashboard.get_note(study)
    assert first.startswith("Above.\n\n")
    assert list(figures_of(study)) and set(figures_of(study)) == set(FIGURES)
    optuna_dashboard.save_note(study, first + "\n\nBelow.")
    dashboard.publish(study, filled.store)
    assert optuna_dashboard.get_note(study) == first + "\n\nBelow."
    optuna_dashboard.save_note(study, "Above.\n\n" + first.partition("Above.\n\n")[2][:200])
    dashboard.publish(study, filled.store)  # a note that was cut is mended
    assert optuna_dashboard.get_note(study) == first
    monkeypatch.undo()
    optuna_dashboard.save_note(study, first + "\n\nBelow.")
    filled.add([0.0] * 10, {"alpha": 0.5}, {"alpha": FloatDistribution(1e-6, 1e6, log=True)})
    dashboard.publish(study, filled.store)
    note = optuna_dashboard.get_note(study)
    assert note.startswith("Above.\n\n") and note.endswith("\n\nBelow.")
    assert note.count("## Best") == 1
    assert "## Best: trial 12" in note
    figures = figures_of(study)
    assert set(figures) == set(FIGURES)
    for name in FIGURES:  # without the curve of ensembles
        plot = report.FIGURES[name.removeprefix("treecv-")]
        assert figures[name] == plot(study, filled.store).to_json()


@pytest.mark.slow
def test_a_study_with_nothing_to_say(fill):
    filled = fill()
    dashboard.publish(filled.study, filled.store)
    assert "No trial has finished yet." in optuna_dashboard.get_note(filled.study)
    filled.add([0.1], stored=False)
    note = note_of(filled)
    assert "None of the 1 finished trials is in the store." in note
    filled.add([np.inf, 0.1], fingerprint="")
    note = note_of(filled)
    assert "No finished trial has a finite value." in note
    facts = facts_of(note)
    assert facts["**data**"] == "1,234 rows × 5 features"
    assert facts["**trials**"] == "2 complete, 1 of them infinite, 1 of 2 in the store"
    assert set(figures_of(filled.study)) == set(FIGURES)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.slow
def test_the_note_says_how_far_running_trials_are(filled):
    line = "models are trained: 2.2 of 4.2 readings in 8 s, 9 s left"
    for text in (line, None):
        trial = filled.study.ask()
        if text is not None:
            trial.set_user_attr(PROGRESS_ATTRIBUTE, text)
    note = note_of(filled)
    assert note.count(f"Trial {trial.number - 1}: `{line}`.") == 1
    assert f"Trial {trial.number}:" not in note
    filled.study.tell(trial.number - 1, 0.3)
    dashboard.publish(filled.study, filled.store)
    assert line not in optuna_dashboard.get_note(filled.study)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.slow
def test_the_lines_to_copy_make_the_best_model(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = (X[:, 0] > 0).astype(int)
    store, storage = f"sqlite:///{tmp_path / 'store.db'}", optuna.storages.InMemoryStorage()
    grid, named = {"alpha": [0.01, 0.1, 1.0]}, {"storage": storage, "study_name": "my 'study'"}
    objective, study = searched(PegasosClassifier(), (X, y), grid, store=store, study=named)
    dashboard.publish(study, store)
    note = optuna_dashboard.get_note(study)
    (snippet,) = re.findall(r"```python\n(.*?)```", note, flags=re.DOTALL)
    names = {"optuna": optuna, "storage": storage, "objective": objective}
    exec(snippet.partition("# Now trial")[0], names)  # lines for the simplest model may follow
    expected = objective.best_estimator(study)
    assert names["model"].get_params() == expected.get_params()
    np.testing.assert_array_equal(names["model"].coef_, expected.coef_)
    best = study.best_trial
    assert (
        f"# Now trial {best.number}: PegasosClassifier with alpha={best.params['alpha']}" in note
    )
    facts = facts_of(note)
    share = 1 - np.bincount(y).max() / 80
    assert facts["**baseline**"].startswith(
        f"{share:.4g} on all rows by always predicting the most frequent"
    )


def test_the_callback_publishes_every_so_many_trials(monkeypatch):
    published = []
    monkeypatch.setattr(
        dashboard, "publish", lambda study, store: published.append((len(study.trials), store))
    )
    study = optuna.create_study()
    callback = dashboard.DashboardCallback(STORE, every=3)

    def objective(trial):
        if trial.number in (2, 4):
            raise optuna.TrialPruned
        return 1.0

    study.optimize(objective, 8, callbacks=[callback])
    assert published == [(3, STORE), (6, STORE)]


def test_the_callback_never_stops_a_study(monkeypatch):
    def publish(study, store):
        raise OSError("the disk is full")

    monkeypatch.setattr(dashboard, "publish", publish)
    study = optuna.create_study()
    with pytest.warns(UserWarning, match="could not be published after trial 1: the disk is full"):
        study.optimize(lambda trial: 1.0, 3, callbacks=[dashboard.DashboardCallback(STORE, 2)])
    assert len(study.trials) == 3


@pytest.mark.parametrize("every", [0, 1.5])
def test_every_must_be_a_number_of_trials(every):
    with pytest.raises(ValueError, match="every must be a number of trials"):
        dashboard.DashboardCallback(STORE, every)


def test_without_the_dashboard_one_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    spec = importlib.util.spec_from_file_location("dashboard_anew", dashboard.__file__)
    with pytest.raises(ImportError, match=r"optuna-dashboard: pip install 'optuna-treecv\[dash"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium here to look at the pages with")
def test_note_and_figures_are_on_the_pages(fill, tmp_path):
    filled = with_trials(fill(f"sqlite:///{tmp_path / 'study.db'}", n_folds=10))
    optuna_dashboard.save_note(filled.study, "My own words.")
    dashboard.publish(filled.study, filled.store)
    with served(f"sqlite:///{tmp_path / 'study.db'}") as address:
        note = page(f"{address}/studies/1/note", tmp_path / "profile")
        study = page(f"{address}/studies/1", tmp_path / "profile")

    text = text_of(note)
    assert "My own words." in text
    assert re.search(r"<h2[^>]*>Best: trial 7, error 0\.\d+ ± 0\.\d+</h2>", note)
    assert "std / √folds" in text
    assert "1,234 rows × 5 features" in text
    assert note.count("<table") == 2
    assert "treecv]" not in text and "<" not in text and "emsp" not in text and "|" not in text

    for name, title in FIGURES.items():
        begin = study.index(f'id="user-defined-plot:{name}"')
        following = [study.find('id="user-defined-plot:', begin + 9), study.find("Best Trial")]
        card = study[begin : min(i for i in following if i > 0)]
        assert title in card, name
        assert 'class="main-svg"' in card
        if name == "treecv-parameters":
            assert {"alpha", "kind", "complete", "pruned"} <= set(re.findall(r">(\w+)<", card))
            # In each of two panels: 10 complete, 1 pruned, 1 infinite, and the ring of the best.
            assert len(re.findall(r'class="point\b', card)) == 2 * 13
            assert len(re.findall(r'class="yerror\b', card)) == 2 * 11


@pytest.mark.nightly
def test_the_example(tmp_path, monkeypatch, capsys):
    path = Path(__file__).resolve().parents[2] / "examples" / "dashboard.py"
    assert len(path.read_text().splitlines()) < 60
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))
    printed = capsys.readouterr().out
    assert "optuna-dashboard sqlite:///treecv_study.db" in printed
    study = optuna.load_study(study_name="pegasos", storage="sqlite:///treecv_study.db")
    note = optuna_dashboard.get_note(study)
    assert f"## Best: trial {study.best_trial.number}, error {study.best_value:.4f} ± " in note
    assert set(figures_of(study)) == set(FIGURES)
    # The dashboard shows the first 1,024 characters of a dict, here the score and its error first.
    for trial in study.trials:
        assert list(trial.user_attrs) == ["treecv"]
        assert list(trial.user_attrs["treecv"])[:2] == ["mean_test_score", "std_test_score"]
        assert len(str(trial.user_attrs["treecv"])) < 1024
