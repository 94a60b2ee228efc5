"""Verifier of instructions that a program can check: IFEval (arXiv:2311.07911) and the ids that open-instruct added.

`verify.py` judges a completion, `labels.py` reads its label, `catalog.py` lists the constraints by id, and
`functions.py` the constraints of the older form (`ifeval_old`). The other files have the constraints by family.
"""

from services.reward.verifiers.ifeval.verify import VERIFIER

__all__ = ["VERIFIER"]
