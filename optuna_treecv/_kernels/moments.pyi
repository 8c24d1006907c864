import numpy as np

class Blocks:
    def __init__(self, X: np.ndarray, imputes: bool = False, empty: object = np.empty) -> None: ...
