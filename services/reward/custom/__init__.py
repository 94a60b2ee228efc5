"""Custom verifiers: functions in a file or an installed package that does not come with Shoal.

`code.py` is one version of a function, `loading.py` loads and calls it inside a process that can be killed, `probe.py`
tries that in a separate process, and `custom_verifiers.py` lists the code that a configuration and packages name.
"""
