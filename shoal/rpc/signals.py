"""The signal with which a process asks itself to end, and to restart its program then."""

import signal

RESTART_SIGNAL = signal.SIGUSR1
"""Not SIGTERM: one that a supervisor sends at the same moment must still end the process for good."""
