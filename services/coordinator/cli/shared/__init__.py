"""The common parts of the commands of `shoal`: options, output, exit codes, lines of progress."""
