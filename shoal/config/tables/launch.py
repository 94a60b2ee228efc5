"""The `[launch]` table: the processes of `shoal train`."""

from pydantic import Field

from shoal.config.tables.section import Section


class LaunchConfig(Section):
    """Processes that `shoal train` starts on this machine. On other machines the deployment decides the numbers."""

    num_generators: int = Field(default=1, ge=1)
    """Number of generator processes."""
    num_rewards: int = Field(default=1, ge=1)
    """Number of reward processes."""
    num_learner_ranks: int = Field(default=1, ge=1)
    """Number of learner processes. A run may be resumed with another number of learner processes."""
    single_gpu: bool = False
    """Let one learner rank and one generator share the first GPU. Weights travel by gloo, since NCCL refuses two
    members on one GPU. `generator.gpu_memory_utilization` must leave memory for the learner."""
    coordinator_port: int = Field(default=0, ge=0, le=65535)
    """Port of the coordinator. With 0 the coordinator takes a free port."""
