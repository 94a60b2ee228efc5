"""The common part of the worker processes: generator, reward service, learner.

A worker starts before it has a configuration, and knows only the coordinator's address. `process.run_worker` serves,
registers and ends a worker; `lifecycle.Lifecycle` has the worker's configuration and state; `reexec.Reexec` restarts
the worker's program.
"""
