"""The signal with which a process asks itself to end and then to restart its program."""

import signal

RESTART_SIGNAL = signal.SIGUSR1
"""The signal is not SIGTERM, because a supervisor's SIGTERM at the same moment must still end the process for good."""
