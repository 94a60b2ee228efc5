"""The `[launch]` table: the processes of `shoal train`."""

from pydantic import Field

from shoal.config.tables.section import Section


class LaunchConfig(Section):
    """Processes that `shoal train` starts on this machine. Elsewhere the deployment decides their number."""

    num_generators: int = Field(default=1, ge=1)
    """Generator processes."""
    num_rewards: int = Field(default=1, ge=1)
    """Reward processes."""
    num_learner_ranks: int = Field(default=1, ge=1)
    """Learner processes. A run may be resumed with another number of them."""
    single_gpu: bool = False
    """Let one learner rank and one generator share the first GPU. Weights travel by gloo, since NCCL refuses two
    members on one GPU. `generator.gpu_memory_utilization` must leave memory for the learner."""
    coordinator_port: int = Field(default=0, ge=0, le=65535)
    """Port of the coordinator; 0 takes a free one."""
