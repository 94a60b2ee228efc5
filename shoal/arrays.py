"""Types of numpy arrays, apart from shoal/rollout.py, which processes without numpy import."""

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
