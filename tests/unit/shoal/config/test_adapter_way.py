"""`generator.lora = "adapter"`, which asks for more than the merged way."""

from typing import Any

import pytest

from shoal.config import parse_config
from shoal.errors import InvalidArgument


def config(lora: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    generator = {"lora": "adapter"} | sections.pop("generator", {})
    return {
        "model": {"path": "unused"},
        "data": {"sources": [{"path": "unused.jsonl"}]},
        "learner": {"lora": lora},
        "generator": generator,
        **sections,
    }


def test_adapters_of_any_rank_that_vllm_takes_are_accepted() -> None:
    for rank in (1, 16, 300, 512):
        assert parse_config(config({"rank": rank})).generator.lora == "adapter"


@pytest.mark.parametrize(
    ("lora", "sections", "complaint"),
    [
        ({}, {}, r'generator\.lora "adapter" needs learner\.lora\.rank above 0'),
        ({"rank": 513}, {}, r'learner\.lora\.rank 513: vLLM takes at most 512; change that, or use "merged"'),
        ({"rank": 8, "quantization": "nf4"}, {}, r'learner\.lora\.quantization "nf4".*or use "merged"'),
        ({"rank": 8}, {"generator": {"keep_stale_kv": True}}, r"generator\.keep_stale_kv"),
        ({"rank": 8}, {"weights": {"backend": "nccl"}}, r"weights\.backend nccl"),
    ],
)
def test_what_an_engine_cannot_serve_as_an_adapter_is_refused_with_the_merged_way(
    lora: dict[str, Any], sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse_config(config(lora, **sections))


def test_the_merged_way_takes_them() -> None:
    for lora in ({}, {"rank": 513}, {"rank": 8, "quantization": "nf4"}):
        parse_config(config(lora, generator={"lora": "merged", "keep_stale_kv": True}))
