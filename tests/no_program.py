"""What a service that lives in a test's own process starts over as."""

from shoal.worker.renewal import Program


class NoProgram(Program):
    """Never starts: the real one would put a new pytest in the place of the one that runs."""

    def __init__(self):
        super().__init__("", (), {})

    def start_again(self):
        """Leaves everything as it is."""
