"""A fitted search is pickled, and predicts in another process."""

from pathlib import Path
import pickle
import sys
import tempfile

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import PegasosClassifier
from optuna_treecv import TreeCVSearchCV

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
from processes import Script  # noqa: E402

PREDICT = """
import pickle, sys, numpy as np
from sklearn.datasets import load_breast_cancer
search = pickle.load(open(sys.argv[1], "rb"))
np.save(sys.argv[2], search.predict(load_breast_cancer().data))
"""

if __name__ == "__main__":
    X, y = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), PegasosClassifier())
    search = TreeCVSearchCV(
        pipeline, param_grid={"pegasosclassifier__alpha": [0.001, 0.01, 0.1]}, random_state=0
    )
    search.fit(X, y)
    with tempfile.TemporaryDirectory() as folder:
        pickled, predicted = Path(folder, "search.pkl"), Path(folder, "predicted.npy")
        pickled.write_bytes(pickle.dumps(search))
        script = Path(folder, "script.py")
        script.write_text(PREDICT)
        assert Script(script, pickled, predicted).wait() == 0
        assert np.array_equal(np.load(predicted), search.predict(X))
