"""The signal with which a process asks itself to end and then to restart its program."""

import signal

RESTART_SIGNAL = signal.SIGUSR1
"""It is not SIGTERM: a supervisor's SIGTERM at the same moment must still end the process for good."""
