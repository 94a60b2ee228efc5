"""Types of numpy arrays. Types of numpy arrays, kept separate because a process that judges completions imports
shoal/rollout.py but not numpy."""

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
