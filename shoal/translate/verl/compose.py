"""Settings that several of verl's overrides decide together."""

from os.path import expanduser

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.run_name import run_name
from shoal.translate.shared.trackers import set_trackers
from shoal.translate.verl.advantage import compose_advantage
from shoal.translate.verl.batches import compose_batches
from shoal.translate.verl.correction import compose_correction
from shoal.translate.verl.data import compose_data
from shoal.translate.verl.kl import compose_kl
from shoal.translate.verl.lora import compose_lora
from shoal.translate.verl.loss import compose_loss
from shoal.translate.verl.names import MODEL
from shoal.translate.verl.reward import (
    compose_custom_reward,
    compose_overlong,
    compose_reward_model,
    compose_scorers,
)
from shoal.translate.verl.schedule import compose_schedule


def compose(source: Source, draft: Draft) -> None:
    """Sets the fields that no override decides alone."""
    draft.set("run.name", run_name(source["trainer.experiment_name"]), source.origin("trainer.experiment_name"))
    if source[f"{MODEL}.path"]:
        draft.set("model.path", expanduser(source[f"{MODEL}.path"]), source.origin(f"{MODEL}.path"))
    if source[f"{MODEL}.trust_remote_code"]:
        draft.set("model.trust_remote_code", True, source.origin(f"{MODEL}.trust_remote_code"))
        draft.notes.append("trust_remote_code = true: every service runs the Python code that comes with the model")
    if source.is_set("data.truncation") and source["data.truncation"] != "error":
        draft.notes.append(f"data.truncation = {source['data.truncation']}: Shoal leaves out prompts that are too long")
    set_trackers(source, draft, "trainer.logger", source["trainer.logger"])
    draft.set("tracking.wandb_project", source["trainer.project_name"], source.origin("trainer.project_name"))
    compose_data(source, draft)
    compose_scorers(source, draft)
    compose_reward_model(source, draft)
    compose_custom_reward(source, draft)
    compose_overlong(source, draft)
    compose_batches(source, draft)
    compose_schedule(source, draft)
    compose_lora(source, draft)
    compose_advantage(source, draft)
    compose_kl(source, draft)
    compose_loss(source, draft)
    compose_correction(source, draft)
