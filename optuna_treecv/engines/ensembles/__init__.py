"""Ensembles that grow tree by tree: scikit-learn, LightGBM and XGBoost, one module each."""
