"""What the commands of `shoal` share: options, output, exit codes, lines of progress."""
