"""The common part of the worker processes: generator, reward service, learner.

A worker starts first and knows only the coordinator's address. `process.run_worker` serves, registers and ends it;
`lifecycle.Lifecycle` holds its configuration and state; `reexec.Reexec` restarts its program.
"""
