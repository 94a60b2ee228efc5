"""Tests of the calls and assignments that are read from Python files."""

from pathlib import Path

from shoal.translate import SYSTEMS
from shoal.translate.sources.reading import read_settings
from shoal.translate.sources.settings import Settings

PARSED = """
parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
script_args, training_args, model_args = parser.parse_args_and_config()
dtype = model_args.dtype if model_args.dtype in ["auto", None] else getattr(torch, model_args.dtype)
training_args.model_init_kwargs = dict(revision=model_args.model_revision, dtype=dtype, use_cache=False)
training_args.chat_template_kwargs = {"enable_thinking": False}
if training_args.temperature is None:
    training_args.temperature = 0.7
trainer = GRPOTrainer(model=model_args.model_name_or_path, args=training_args, tools=[look_up], eval_dataset=None)
"""
LOADED = """
model = AutoModelForCausalLM.from_pretrained(
    "org/model", quantization_config=BitsAndBytesConfig(load_in_4bit=True), revision="v1"
)
tokenizer = AutoTokenizer.from_pretrained("org/other", trust_remote_code=True)
tokenizer.chat_template = "{{ messages }}"
args = GRPOConfig(max_steps=5)
args.max_steps = 7
trainer = GRPOTrainer(model, args=args)
model = AutoModelForCausalLM.from_pretrained("org/trained")
"""


def read(tmp_path: Path, text: str, *flags: str) -> Settings:
    path = tmp_path / "train.py"
    path.write_text(text)
    return read_settings(SYSTEMS["trl"], [str(path), *flags])


def test_a_file_that_parses_its_command_line_is_read_with_its_flags(tmp_path: Path) -> None:
    settings = read(
        tmp_path, PARSED, "--model_name_or_path", "org/model", "--max_steps", "3", "--chat_template_kwargs", "{}"
    )
    assert (settings.values["model_name_or_path"], settings.values["max_steps"]) == ("org/model", "3")
    assert settings.values["chat_template_kwargs"] == {"enable_thinking": False}, "the file assigns it afterwards"
    assert settings.values["model_init_kwargs"] == {"use_cache": False}, "the others are flags"
    assert settings.values["GRPOTrainer.tools"] == ["look_up"], "an argument of the trainer is not forgotten"
    assert list(settings.unset) == ["temperature"] and "under a condition" in settings.unset["temperature"]
    assert any("from the command line" in note for note in settings.notes)


def test_what_a_file_loads_and_assigns_before_training_is_read(tmp_path: Path) -> None:
    values = read(tmp_path, LOADED).values
    assert values["from_pretrained.pretrained_model_name_or_path"] == "org/model", "not the one of the tokenizer"
    assert values["BitsAndBytesConfig.load_in_4bit"] is True and values["from_pretrained.revision"] == "v1"
    assert values["chat_template"] == "{{ messages }}" and values["max_steps"] == 7
    assert "from_pretrained.trust_remote_code" not in values


def test_other_training_in_the_file_is_noted(tmp_path: Path) -> None:
    notes = read(tmp_path, "SFTTrainer(model)\nargs = GRPOConfig(max_steps=5)").notes
    assert any(note.startswith("SFTTrainer in train.py ") for note in notes)


def test_the_file_that_a_script_starts_is_read_with_the_flags_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "grpo_agent.py").write_text(PARSED)
    launch = tmp_path / "run.sh"
    launch.write_text("accelerate launch scripts/grpo_agent.py --max_steps 3 --temperature 1.0")
    settings = read_settings(SYSTEMS["trl"], [str(launch)])
    assert settings.values["GRPOTrainer.tools"] == ["look_up"] and settings.values["max_steps"] == "3"
    launch.write_text("python elsewhere/grpo_other.py --max_steps 3")
    (note,) = read_settings(SYSTEMS["trl"], [str(launch)]).notes
    assert note.startswith("elsewhere/grpo_other.py ") and "run.sh" in note
