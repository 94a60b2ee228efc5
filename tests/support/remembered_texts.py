"""Texts of the tiny model's chat template, from memory where they were rendered before.

A start of a run renders five times, each in a process, which takes half of the CPU time of a test with scripted
workers.
"""

import json
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest

from shoal.chat_templates.rendering import BoundedTemplate, Dialogue, Unrendered
from tests.support.tiny_model import CHAT_TEMPLATE

assert "time" not in CHAT_TEMPLATE, "the texts depend on more than what is remembered"


@pytest.fixture(autouse=True, scope="session")
def remembered_texts() -> Iterator[None]:
    render = BoundedTemplate.render
    texts: dict[str, list[str | Unrendered]] = {}

    def remembered(template: BoundedTemplate, dialogues: Sequence[Dialogue]) -> list[str | Unrendered]:
        given = json.loads(template._given)
        if given["plain"] != CHAT_TEMPLATE or given["for_tools"] != CHAT_TEMPLATE:
            return render(template, dialogues)
        name = f"{given['variables']} {dialogues}"
        if name not in texts:
            texts[name] = render(template, dialogues)
        return [*texts[name]]

    with mock.patch.object(BoundedTemplate, "render", remembered):
        yield
