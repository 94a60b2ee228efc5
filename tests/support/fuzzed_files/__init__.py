"""Files with arbitrary contents, given to everything that reads them: only a `ShoalError` may come back, soon, and
without a stack trace in it.

    nice python -m tests.support.fuzzed_files --seconds 60 --seed 7 [TARGET...]       mutations of real files
    nice python -m tests.support.fuzzed_files --coverage --seconds 60 [TARGET...]     guided by coverage: shoal[fuzz]
"""
