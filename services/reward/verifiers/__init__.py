"""The verifiers, each in a module of its name that declares it as `VERIFIER`."""
