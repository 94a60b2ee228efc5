"""Workers that follow a script: the real generator service around a scripted engine, a learner and a reward service."""
