import optuna
import polars as pl
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler

from optuna_treecv import treecv_objective

rows = load_wine()
table = pl.DataFrame(rows.data, schema=rows.feature_names).with_columns(kind=rows.target)
table = table.with_columns(dark=pl.when(pl.col("hue") < 0.9).then(pl.lit("yes")).otherwise(None))
columns = make_column_transformer(
    (StandardScaler(), ["alcohol", "proline"]), (OneHotEncoder(handle_unknown="ignore"), ["dark"])
)
model = make_pipeline(columns, LogisticRegression())
objective = treecv_objective(model, table, "kind", param_distributions="auto", scoring="accuracy")
study = optuna.create_study(direction=objective.direction)
study.optimize(objective, n_trials=5)
print(objective.best_estimator(study).predict(table.head(2)))
