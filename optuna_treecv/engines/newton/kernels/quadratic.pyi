import numpy as np

def find_steps(
    hessians: np.ndarray,
    gradients: np.ndarray,
    models: np.ndarray,
    strengths: np.ndarray,
    is_free: np.ndarray,
) -> np.ndarray: ...
