"""The verifiers, one per module. The module has the verifier's name, and `VERIFIER` declares it."""
