"""The verifiers, one a module: the module's name is the verifier's, and `VERIFIER` declares it."""
