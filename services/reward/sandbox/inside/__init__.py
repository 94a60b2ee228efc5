"""The code that runs in the sandbox. Standard library only: nothing else is installed there."""
