"""A simulator of runs: the coordinator's real code, scripted workers, a virtual clock; see docs/testing.md.

test_schedules.py      the seeds that `make test` tries
simulation.py          one schedule from its seed: what happens, and what it must come to
scenario.py            the settings, and what a seed does to them: kills, delays, verbs
invariants.py          what holds after each schedule
world.py               processes that start, are killed, and start again
workers/               generator, learner and reward service, and the weights between them
network/               calls in memory in place of sockets: lost, late, repeated
virtual_time.py        the event loop of one schedule, and its processes
"""
