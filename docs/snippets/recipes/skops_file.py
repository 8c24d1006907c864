from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skops.io import dump
from skops.io import get_untrusted_types
from skops.io import load

from optuna_treecv import PegasosClassifier
from optuna_treecv import TreeCVSearchCV

X, y = load_breast_cancer(return_X_y=True)
model = make_pipeline(StandardScaler(), PegasosClassifier())
search = TreeCVSearchCV(model, "auto", random_state=0).fit(X, y)
dump(search.best_estimator_, "model.skops")
types = get_untrusted_types(file="model.skops")
print(types)  # check the names before you trust the types
loaded = load("model.skops", trusted=types)
print((loaded.predict(X) == search.predict(X)).all())
