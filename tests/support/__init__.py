"""Helpers that several tests share. Nothing here is a test.

Find one by what the test needs:

* A model: `tiny_model` (a random Llama and reward model with a byte-level tokenizer), `train_batches` (groups and
  batches for the learner), `loss_variants` (configurations of the loss, and batches that use every part of it).
* A service in the test's own process: `loopback` (any servicer behind a real gRPC server), `cluster` (a coordinator
  with scripted workers), `scripted_workers` (generator, learner and reward service that follow a script),
  `scripted_engine` (the generator's engine), `generator_client` (calls a generator that has the scripted engine).
* A service in its own process: `reward_client` (calls a reward service; also starts `python -m services.reward`),
  `scripted_train` (`shoal train` with scripted workers), `worker_process` (a scripted worker with a real process life),
  `local_stack` (`shoal train` with real engines).
* Trouble: `hostile_completions` (completions and programs that attack verifiers).
* Groups of completions in the coordinator: `groups` (settled and judged groups, made from rewards).
* An observer: `otlp_collector` (an OpenTelemetry collector), `waiting` (`eventually`: waits for a condition).
* Paths: `repository` (the root of the checkout). Processes: `processes` (runs commands side by side), `ranks` (learner
  ranks as forks). Packages: `packages` (skips the tests of one that is not installed).
"""
