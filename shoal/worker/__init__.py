"""What the worker processes (generator, reward, learner) have in common.

A worker starts first and knows only the coordinator's address: `run_worker` offers its service, registers it, keeps
its lease, and ends it.
"""
