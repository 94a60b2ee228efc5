"""Verifier of instructions that a program can check: IFEval (arXiv:2311.07911) and the ids that open-instruct added.

`verify.py` judges a completion, `labels.py` reads the label, `catalog.py` lists the constraints by id and
`functions.py` lists the constraints of the older form (`ifeval_old`). The other files contain the constraints by
family, one small function each. Several families share `sentences.py` and `words.py`.
"""

from services.reward.verifiers.ifeval.verify import VERIFIER

__all__ = ["VERIFIER"]
