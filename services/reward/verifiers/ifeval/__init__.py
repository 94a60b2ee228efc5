"""Instructions whose following a program can check: IFEval (arXiv:2311.07911) and the ids that open-instruct added.

`verify.py` judges a completion, `labels.py` reads what the data says, `catalogue.py` lists the constraints by id and
`functions.py` the older form. The other files hold the constraints, one small function each, by family, and what
several families need: `sentences.py`, `words.py`.
"""
