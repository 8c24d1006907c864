"""The kinds of cases of ``differential.py``, and what they are drawn from."""
