"""The code that runs in the sandbox. It uses only the standard library, since nothing else is installed there."""
