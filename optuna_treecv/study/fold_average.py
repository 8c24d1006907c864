"""An estimator that averages the predictions of the models of all folds."""

from collections.abc import Callable

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.base import RegressorMixin
from sklearn.utils import get_tags
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if

from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.study.fitted import FittedEstimator
from optuna_treecv.types import Array
from optuna_treecv.types import Features
from optuna_treecv.types import Targets


def _models_have(method: str) -> Callable[["FoldAverage"], bool]:
    return lambda average: hasattr(average.models[0], method)


class FoldAverage(FittedEstimator):
    """Predicts the mean of the predictions of several fitted models.

    ``TreeCVObjective.best_estimator`` creates it with ``kind="folds"``. Each model has been fitted
    on the training rows of a fold. Regressors are averaged. Classifiers are averaged by their
    probabilities or else by their decision values; if they have neither, they vote, and the first
    class wins ties.

    Parameters
    ----------
    models : FoldModels
        The fitted models. They must have the same classes.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, for classifiers.
    """

    def __init__(self, models: FoldModels) -> None:
        self.models = models

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        of_model = get_tags(self.models[0])
        tags.estimator_type, tags.input_tags = of_model.estimator_type, of_model.input_tags
        tags.classifier_tags = of_model.classifier_tags
        tags.regressor_tags = of_model.regressor_tags
        return tags

    @property
    def classes_(self) -> Array:
        return np.asarray(self.models[0].classes_)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803  # as in scikit-learn
        """Return the number of models and the first one."""
        return f"FoldAverage({len(self.models)} models, the first one is {self.models[0]!r})"

    def _mean(self, method: str, X: Features) -> Array:
        total = np.zeros(())
        for model in self.models:
            total = total + getattr(model, method)(X)
        return np.asarray(total / len(self.models))

    def predict(self, X: Features) -> Array:
        """Return the mean prediction, or the predicted class.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_targets)
            The predictions.
        """
        first = self.models[0]
        if not is_classifier(first):
            return self._mean("predict", X)
        method = next((m for m in ("predict_proba", "decision_function") if hasattr(first, m)), "")
        if method:
            output = self._mean(method, X)
        else:
            output = sum(np.asarray(m.predict(X))[:, None] == self.classes_ for m in self.models)
        codes = (output > 0).astype(np.intp) if output.ndim == 1 else output.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def score(self, X: Features, y: Targets, sample_weight: Array | None = None) -> float:
        """Return the accuracy of a classifier, or the R2 of a regressor.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.
        y : array-like of shape (n_rows,)
            The classes or targets.
        sample_weight : array-like of shape (n_rows,), default=None
            The weights of the rows.

        Returns
        -------
        float
            The score.
        """
        mixin = ClassifierMixin if is_classifier(self) else RegressorMixin
        return float(mixin.score(self, X, y, sample_weight))

    @available_if(_models_have("predict_proba"))
    def predict_proba(self, X: Features) -> Array:
        """Return the mean probabilities.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.

        Returns
        -------
        ndarray of shape (n_rows, n_classes)
            The probabilities.
        """
        return self._mean("predict_proba", X)

    @available_if(_models_have("decision_function"))
    def decision_function(self, X: Features) -> Array:
        """Return the mean decision values.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The rows to predict.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_classes)
            The decision values.
        """
        return self._mean("decision_function", X)


def missing_class_error(purpose: str) -> ValueError:
    """Return the error for fold models that do not know all classes."""
    return ValueError(
        f"cv must make training sets with every class of y for {purpose}; use fewer or stratified "
        "folds instead."
    )


def check_classes(models: FoldModels, purpose: str) -> None:
    """Raise ValueError unless all classifiers have the same classes."""
    classes = [np.asarray(model.classes_) for model in models]
    if not all(np.array_equal(classes[0], of_model) for of_model in classes):
        raise missing_class_error(purpose)


def average_models(models: FoldModels) -> FoldAverage:
    """Return the average of fitted models, which must have the same classes."""
    if is_classifier(models[0]):
        check_classes(models, "an average of fold models")
    elif not is_regressor(models[0]):
        raise ValueError(
            "kind must be 'refit' unless the estimator is a classifier or a regressor, "
            "got 'folds'."
        )
    return FoldAverage(models)
