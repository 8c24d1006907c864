"""Compiled loops of generalised linear models: products of columns and derivatives of losses."""
