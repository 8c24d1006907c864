import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale

from optuna_treecv import AveragedSGDRegressor

X, y = map(scale, load_diabetes(return_X_y=True))
weights = np.where(np.arange(len(y)) % 10 == 0, 30, 1)
model = AveragedSGDRegressor(step_size=0.01, random_state=0)


def r2():
    return round(model.score(X, y, sample_weight=weights), 1)


model.fit(X.repeat(weights, axis=0), y.repeat(weights))
print("rows repeated: ", r2())
model.fit(X, y, sample_weight=weights)
print("as they are:   ", r2())
model.fit(X, y, sample_weight=weights / weights.mean())
print("mean weight 1: ", r2())
