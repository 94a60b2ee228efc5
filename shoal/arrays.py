"""Types of numpy arrays. They are not in shoal/rollout.py, because processes without numpy import that module."""

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
