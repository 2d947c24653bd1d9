"""tests/gpu/images.py: what it asks, and what it takes of two engines' answers."""

import gpumodules
import pytest

images = gpumodules.fixture("images")


def engine(images, replayed, off=()):
    """An engine's result: every call gets an answer of its own; prefills of kinds in `replayed`
    launched graphs; off: the names of calls that got another answer."""
    answers, prefills = {}, []
    for number, call in enumerate(images.asks()):
        value, count = 3 + number + 1000 * (call.name in off), call.new_tokens
        one = {"tokens": [value] * count, "logprobs": [-1.0 - number] * count}
        one["best"] = [[-1.0, -3.0]] * count
        began = 10.0 * number
        asked = {"from": began, "to": began + 5, "answers": [one] * len(call.prompts)}
        answers[call.name] = asked
        launches = 5 * (call.kind in replayed)
        prefills.append({"at": began + 1, "tokens": 64, "launches": launches})
    return {"answers": answers, "prefills": prefills}


def faults(images, mine, eager, ruled=True):
    return [check.what for check in images.compared(mine, eager, ruled) if not check.good]


def test_text_on_graphs_and_images_without_is_good(images):
    assert faults(images, engine(images, {images.TEXT}), engine(images, ())) == []


@pytest.mark.parametrize(
    "replayed, off, what",
    [
        ((), (), "prefills of text calls were replayed"),
        (("text", "image"), (), "prefills of image calls were not replayed"),
        (("text",), ("image-two",), "breakable agrees with eager prefill"),
        (("text",), ("text-last",), "breakable agrees with eager prefill"),
    ],
)
def test_a_fault_is_named(images, replayed, off, what):
    assert faults(images, engine(images, replayed, off), engine(images, ())) == [what]


def test_an_image_that_changes_nothing_is_a_fault(images):
    one = engine(images, {images.TEXT})
    one["answers"]["image-other-2"] = one["answers"]["image-other-1"]
    eager = engine(images, ())
    eager["answers"]["image-other-2"] = eager["answers"]["image-other-1"]
    assert faults(images, one, eager) == [
        "eager: another image changes the answer",
        "breakable: another image changes the answer",
    ]


def test_an_answer_of_the_release_is_read(images, monkeypatch):
    """In generate()'s own form. A call without images needs no library to draw them."""
    call = next(call for call in images.asks() if not any(call.images))
    info = dict(
        prompt_tokens=9,
        cached_tokens=4,
        output_token_logprobs=[(-0.5, 7, None)],
        output_top_logprobs=[[(-0.5, 7, None), (-2.0, 3, None)]],
    )
    generated = [{"output_ids": [7], "meta_info": info}] * len(call.prompts)

    class Engine:
        def generate(self, **words):
            return generated

    found = images.ask(Engine(), call)
    one = {"tokens": [7], "cached": 4, "logprobs": [-0.5], "best": [[-0.5, -2.0]]}
    assert found["answers"] == [one] * len(call.prompts)
    assert found["from"] <= found["to"]
