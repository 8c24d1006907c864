"""The folders for OptunaHub: each one loads, works, and has what the registry asks for."""

from __future__ import annotations

from pathlib import Path
import runpy
from types import ModuleType
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_digits
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import tree_cross_validate

optunahub = pytest.importorskip("optunahub")

HUB = Path(__file__).parents[2] / "hub"
TAGS = {
    "pruners/racing": "pruner",
    "benchmarks/treecv_folds": "benchmark",
    "visualization/folds": "visualization",
}


def load(package: str) -> ModuleType:
    return optunahub.load_local_module(package, registry_root=str(HUB))


def test_all_packages_are_tested() -> None:
    assert {str(path.parent.relative_to(HUB)) for path in HUB.rglob("__init__.py")} == set(TAGS)


@pytest.mark.parametrize("package", TAGS)
def test_the_folder_has_what_the_registry_asks_for(package: str) -> None:
    yaml = pytest.importorskip("yaml")
    folder = HUB / package
    assert (folder / "LICENSE").read_bytes() == (HUB.parent / "LICENSE").read_bytes()
    assert (folder / "requirements.txt").read_text().startswith("optuna-treecv")
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    header = yaml.safe_load(front)
    assert set(header) == {
        *("author", "title", "description", "tags", "optuna_versions", "license")
    }
    assert header["author"] == "The optuna_treecv developers"
    assert header["license"] == "MIT License"
    assert TAGS[package] in header["tags"]
    assert all(isinstance(value, str) for value in header["tags"] + header["optuna_versions"])
    sections = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert sections == ["Abstract", "APIs", "Installation", "Example", "Others"]
    for name in load(package).__all__:
        assert f"`{name}(" in text
    # Users load a package from the registry; HTML is removed from its page.
    for code in (text, (folder / "example.py").read_text()):
        assert f'optunahub.load_module("{package}")' in code
        assert "load_local_module" not in code
    assert "<" not in text


@pytest.mark.slow
@pytest.mark.parametrize("package", TAGS)
def test_examples_run(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go = pytest.importorskip("plotly.graph_objects")
    shown: list[Any] = []
    monkeypatch.setattr(optunahub, "load_module", load)
    monkeypatch.setattr(go.Figure, "show", lambda figure: shown.append(figure))
    optimize = optuna.Study.optimize
    monkeypatch.setattr(  # few trials, so that it is quick
        optuna.Study,
        "optimize",
        lambda study, objective, n_trials: optimize(study, objective, min(n_trials, 12)),
    )
    runpy.run_path(str(HUB / package / "example.py"))
    assert len(shown) == (2 if package == "visualization/folds" else 0)


def study_of(X: Any, y: Any, pruner: Any, steps: list[float], **settings: Any) -> optuna.Study:
    objective = load("pruners/racing").treecv_objective(
        AveragedSGDClassifier(alpha=1e-3),
        X,
        y,
        param_distributions={"step_size": FloatDistribution(1e-9, 1.0, log=True)},
        **settings,
    )
    study = optuna.create_study(pruner=pruner)
    for step in steps:
        study.enqueue_trial({"step_size": step})
    study.optimize(objective, n_trials=len(steps))
    return study


def test_the_pruner_drops_a_loser() -> None:
    pruner = load("pruners/racing").RacingPruner(futility=None)
    X, y = load_digits(return_X_y=True)
    study = study_of(X / 16, y, pruner, [0.1, 1e-8], report="progressive")
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.PRUNED]


def test_figures_show_the_best_trials(tmp_path: Path) -> None:
    folds = load("visualization/folds")
    store = f"sqlite:///{tmp_path / 'folds.db'}"
    X, y = load_breast_cancer(return_X_y=True)
    nop = optuna.pruners.NopPruner()
    study = study_of(scale(X), y, nop, [1e-3, 1e-2, 1e-1], cv=5, store=store)
    boxes = folds.plot_fold_scores(study, store, n_best=2).data
    assert [len(box.y) for box in boxes] == [5, 5]
    assert folds.plot_choice(study, store, simpler={"step_size": "smaller"}).data


PARAMS = {"alpha": 1e-3, "step_size": 0.1}


def test_a_value_is_the_mean_of_the_first_folds() -> None:
    Problem = load("benchmarks/treecv_folds").Problem
    problem = Problem("wine", fidelity=3, n_folds=5, n_repeats=2, seed=4)
    assert problem.directions == [optuna.study.StudyDirection.MINIMIZE]
    X, y = load_wine(return_X_y=True)
    model = AveragedSGDClassifier(loss="log_loss", **PARAMS)
    scores = tree_cross_validate(
        model, scale(X), y, cv=5, n_repeats=2, random_state=4, scoring="error"
    ).test_score
    assert problem.max_fidelity == len(scores) == 10
    assert problem.evaluate(PARAMS) == pytest.approx(scores[:3].mean())
    for k in (1, 7, 10):
        assert problem.evaluate(PARAMS, k) == pytest.approx(scores[:k].mean())
    trial = optuna.trial.FixedTrial(PARAMS)
    assert problem(trial) == problem.evaluate(PARAMS)
    assert trial.distributions == problem.search_space


def test_the_true_value_is_that_of_other_folds() -> None:
    Problem = load("benchmarks/treecv_folds").Problem
    true = [Problem("wine", seed=seed).true_value(PARAMS, n_repeats=20) for seed in (0, 1)]
    values = [Problem("wine", seed=seed).evaluate(PARAMS) for seed in range(20)]
    assert true[0] == true[1]
    assert len(set(values)) > 2
    assert np.mean(values) == pytest.approx(true[0], abs=4 * np.std(values) * (2 / 20) ** 0.5)


def test_a_pruner_sees_one_fold_after_another() -> None:
    problem = load("benchmarks/treecv_folds").Problem("iris", fidelity=4)
    study = optuna.create_study()
    study.enqueue_trial(PARAMS)
    study.optimize(problem, n_trials=1)
    reports = {k: problem.evaluate(PARAMS, k) for k in (1, 2, 3, 4)}
    assert study.trials[0].intermediate_values == reports
    study.pruner = optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=2)
    study.enqueue_trial(PARAMS)
    study.optimize(problem, n_trials=1)
    assert study.trials[1].state is TrialState.PRUNED
    assert study.trials[1].last_step == 2


@pytest.mark.parametrize("wrong", [{"dataset": "mnist"}, {"fidelity": 11}, {"n_folds": 1}])
def test_wrong_arguments_of_the_problem(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("n_folds", "cv")):
        load("benchmarks/treecv_folds").Problem(**wrong)
