"""Where programs that nobody has read are run."""
