from optuna_treecv._kernels.tree import Kernel

VECTOR_BYTES: int
MOST: int

class LanesKernel(Kernel): ...
