from .treecv_folds import Problem


__all__ = ["Problem"]
