"""The common part of the worker processes: generator, reward service, learner.

A worker starts with only the coordinator's address. `process.run_worker` serves, registers and ends a worker;
`lifecycle.Lifecycle` has its configuration and state; `reexec.Reexec` restarts its program.
"""
