"""The overlays and the batch files of the recipes' scales have the nodes, ranks and engines of their recipes."""

import re
from typing import Any

import pytest
import yaml

from shoal.config.load import load_config
from tests.support.manifests import of_kind, pods
from tests.support.repository import ROOT

GPUS_PER_NODE = 8
SCALES = (1, 2, 4, 5, 8, 9, 12, 28)
OTHER_RANKS = {2: 8}
"""Nodes -> ranks, where the recipe's ranks and engines together need more GPUs than the nodes have."""


def numbers_of_overlay(nodes: int) -> dict[str, int]:
    name = f"nodes-{nodes}"
    learner, generator = pods(name)["learner"], pods(name)["generator"]
    (ranks,) = learner.owner["spec"]["replicatedJobs"]
    scaler = [item["spec"] for item in of_kind(name, "ScaledObject") if item["metadata"]["name"] == "generator"]
    most = scaler[0]["maxReplicaCount"] if scaler else generator.owner["spec"]["replicas"]
    return {
        "LEARNER_NODES": ranks["replicas"],
        "GPUS_PER_LEARNER_NODE": int(learner.container["resources"]["limits"]["nvidia.com/gpu"]),
        "GENERATORS": most,
        "GPUS_PER_GENERATOR": int(generator.container["resources"]["limits"]["nvidia.com/gpu"]),
    }


def batch_file(nodes: int) -> str:
    return (ROOT / "deploy" / "slurm" / f"nodes-{nodes}.sbatch").read_text()


def recipe_of(nodes: int) -> str:
    scale: dict[str, Any] = yaml.safe_load(
        (ROOT / "deploy" / "k8s" / "overlays" / f"nodes-{nodes}" / "scale.yaml").read_text()
    )
    return str(scale["data"]["recipe"])


@pytest.mark.parametrize("nodes", SCALES)
def test_ranks_and_engines_fill_the_nodes(nodes: int) -> None:
    numbers = numbers_of_overlay(nodes)
    learning = numbers["LEARNER_NODES"] * numbers["GPUS_PER_LEARNER_NODE"]
    sampling = numbers["GENERATORS"] * numbers["GPUS_PER_GENERATOR"]
    assert learning + sampling == nodes * GPUS_PER_NODE, numbers


@pytest.mark.parametrize("nodes", SCALES)
def test_the_recipe_of_a_scale_is_valid_with_its_ranks_and_engines(nodes: int) -> None:
    numbers = numbers_of_overlay(nodes)
    ranks = numbers["LEARNER_NODES"] * numbers["GPUS_PER_LEARNER_NODE"]
    path = ROOT / recipe_of(nodes)
    recipe = load_config(path)
    assert OTHER_RANKS.get(nodes, recipe.launch.num_learner_ranks) == ranks
    assert recipe.launch.num_generators <= numbers["GENERATORS"]
    assert recipe.generator.tensor_parallel_size == numbers["GPUS_PER_GENERATOR"]
    changed = load_config(path, [f"launch.num_learner_ranks={ranks}", "weights.store_port=50052"])
    assert (changed.launch.num_learner_ranks, changed.weights.store_port) == (ranks, 50052)


@pytest.mark.parametrize("nodes", SCALES)
def test_the_batch_file_has_the_numbers_of_the_overlay(nodes: int) -> None:
    text = batch_file(nodes)
    numbers = {name: int(value) for name, value in re.findall(r"([A-Z_]+)=(\d+)", text)}
    assert numbers.items() >= numbers_of_overlay(nodes).items()
    assert f"#SBATCH --nodes={nodes}\n" in text and f"#SBATCH --gpus-per-node={GPUS_PER_NODE}\n" in text
    assert recipe_of(nodes) in text


@pytest.mark.parametrize("nodes", SCALES)
def test_the_table_of_the_documentation_has_the_numbers_of_the_overlay(nodes: int) -> None:
    table = (ROOT / "docs" / "cluster.md").read_text()
    (row,) = re.findall(rf"^\| `nodes-{nodes}` \| (.*) \|$", table, re.M)
    recipe, learning, ranks, engines, gpus = row.split(" | ")
    numbers = numbers_of_overlay(nodes)
    assert recipe.split(",")[0] == recipe_of(nodes).removeprefix("configs/recipes/").removesuffix(".toml")
    assert learning in (str(numbers["LEARNER_NODES"]), "a part of one")
    assert int(ranks) == numbers["LEARNER_NODES"] * numbers["GPUS_PER_LEARNER_NODE"]
    assert int(engines.split(" to ")[-1]) == numbers["GENERATORS"]
    assert int(gpus) == numbers["GPUS_PER_GENERATOR"]
