"""The verifiers, one a file."""
