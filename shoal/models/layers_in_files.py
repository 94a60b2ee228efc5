"""The linear layers of a model, by the names of the tensors in its files, without torch.

The method works for architectures whose modules have the names of their tensors, even after transformers has loaded the
model. These are listed here, and a test compares each with the model that transformers builds. In other architectures
transformers renames or fuses tensors (its `conversion_mapping`), or the layers are not `nn.Linear` (GPT-2).
"""

from pathlib import Path

from shoal.errors import InvalidArgument
from shoal.models.model_folder import read_json
from shoal.parsing import parse_json
from shoal.paths import why_unread

_LAYERS = dict.fromkeys(
    (
        "apertus", "arcee", "cohere", "cohere2", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm",
        "glm4", "granite", "helium", "hunyuan_v1_dense", "llama", "ministral", "ministral3", "mistral", "nemotron",
        "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2",
    ),
    "model.layers.",
) | {"gpt_neox": "gpt_neox.layers."}  # fmt: skip
"""The beginning of the names of a model's blocks, by the type of the model."""
_MAX_HEADER_BYTES = 100_000_000
"""The largest header that the safetensors format allows (github.com/huggingface/safetensors)."""


def layers_in_files(folder: Path) -> dict[str, tuple[int, int]] | None:
    """Returns name and shape, [outputs, inputs], of each linear layer of a model's blocks, in the order of its files.

    Returns None if the files do not suffice: for another architecture, a model with its own code, weights in another
    format, or tensors with unusual names. Raises `InvalidArgument` for a damaged file.
    """
    config = read_json(folder / "config.json")
    beginning = _LAYERS.get(str(config.get("model_type")))
    if beginning is None or "auto_map" in config:
        return None
    return {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in _tensor_shapes(folder).items()
        if name.startswith(beginning) and name.endswith(".weight") and len(shape) == 2
    } or None


def _tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Reads names and shapes from the headers of the safetensors files in a folder."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                num_bytes = int.from_bytes(file.read(8), "little")
                if num_bytes > _MAX_HEADER_BYTES:
                    raise ValueError(f"a header of {num_bytes} bytes")
                header = parse_json(file.read(num_bytes))
            shapes |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"model.path: {path} is not a safetensors file, or is damaged ({why_unread(error)}); download it again"
            ) from None
    return shapes
