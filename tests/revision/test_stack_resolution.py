"""Where a model's decoder layers are, on every release with a graph; what follows without any."""

import importlib
import logging
from types import SimpleNamespace

import pytest
import torch
from host import late, logged, models, prefill

with late.modules():
    from sglang.srt.prefill_graph.model import stack

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.24")
SET_UP = pytest.mark.revision(">=0.5.14")


def of_kind(kind):
    return [name for name, config in models.FAMILIES.items() if config.get("kind") == kind]


TEXT, WRAPPERS = of_kind("text"), of_kind("wrapper")
WITHOUT = of_kind("without layers")  # where they are looked for


def build(name):
    """The real class on the meta device."""
    return models.family(name, real_class(name))


def real_class(name):
    module, _, name = name.partition(".")
    try:
        return getattr(importlib.import_module(f"sglang.srt.models.{module}"), name)
    except ModuleNotFoundError as error:
        if not error.name.startswith("sglang.srt.models."):
            raise
        pytest.skip("not in this release")


def shell(name, **parts):
    """A real class without what its __init__ builds, but for `parts` around the language model."""
    model = real_class(name).__new__(real_class(name))
    torch.nn.Module.__init__(model)
    for part, module in parts.items():
        setattr(model, part, module)
    return model


class Holder(torch.nn.Module):
    """A wrapper that keeps `parts`."""

    def __init__(self, **parts):
        super().__init__()
        for name, module in parts.items():
            setattr(self, name, module)


NESTED = {  # a wrapper as its class makes it, around a language model
    "deepseek_ocr.DeepseekOCRForCausalLM": lambda lm: dict(model=lm),
    "internvl.InternVLChatModel": lambda lm: dict(language_model=lm, model=lm.model),
    "kimi_vl.KimiVLForConditionalGeneration": lambda lm: dict(language_model=lm),
    "gemma4_mm.Gemma4ForConditionalGeneration": lambda lm: dict(language_model=lm.model),
    "qwen3_omni_moe.Qwen3OmniMoeForConditionalGeneration": lambda lm: dict(
        thinker=Holder(model=lm.model)
    ),
}


@pytest.fixture(scope="module")
def llama(build_model):
    return build_model("llama")


# What is found


@pytest.mark.parametrize("name", [*TEXT, *WRAPPERS])
def test_a_model_and_a_multimodal_wrapper(name, caplog):
    """What is found is what the release's own set-up captures, silently, from 0.5.14 on; the full
    graph has the same stack, where a release offers one."""
    model, wrapped = build(name), name in WRAPPERS
    found = stack.find(model)
    assert found.path == ("language_model.model" if wrapped else "model")
    assert found.owner is model.get_submodule(found.path)
    assert wrapped or len(found.layers) == 2
    if not late.has(prefill.RUNNER):
        return
    if prefill.offers("full"):
        assert prefill.resolve(model, "full").layer_model is found.owner
    captured = prefill.set_up(model)
    if wrapped and not prefill.takes_every_wrapper():
        [text] = warned(caplog)
        assert captured is None
        assert f"{type(model).__name__}: this release captures no wrapper" in text
    else:
        assert captured.layer_model is found.owner and warned(caplog) == []


@pytest.mark.parametrize("name", NESTED)
def test_a_nested_wrapper(name, llama):
    """0.5.14 to 0.5.16 raised where it was the language_model, or below its `model`."""
    model = shell(name, **NESTED[name](llama))
    assert stack.find(model).owner is llama.model
    if late.has(prefill.RUNNER):
        assert prefill.resolve(model).layer_model is llama.model
        if hasattr(model, "model") or prefill.takes_every_wrapper():
            assert prefill.set_up(model).layer_model is llama.model


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_layers(name):
    model = build(name)
    probed = rf"^no decoder layers in the model \({type(model).__name__}\)"
    with pytest.raises(stack.NoStack, match=probed):
        stack.find(model)


def endless():
    """A model that makes a new inner model each time it is asked for one."""

    class Endless:
        model = property(lambda self: Endless())

    return Endless()


def looped():
    model = SimpleNamespace()
    model.model = SimpleNamespace(model=model)
    return model


@pytest.mark.parametrize("make", [looped, endless])
def test_a_walk_ends(make):
    with pytest.raises(stack.NoStack, match="no decoder layers in the model"):
        stack.find(make())


def test_the_language_model_is_tried_before_other_layers(llama):
    """A wrapper's `model` can be its vision tower; a talker's layers stand beside its thinker's."""
    tower = SimpleNamespace(layers=[1])
    one = SimpleNamespace(model=tower, thinker=tower, language_model=llama.model)
    assert (stack.find(one).owner, stack.find(one).path) == (llama.model, "language_model")
    other = SimpleNamespace(thinker=tower, model=llama.model)
    assert (stack.find(other).owner, stack.find(other).path) == (llama.model, "model")


def test_the_model_says_it_itself(llama):
    other = SimpleNamespace(layers=[1])
    assert (
        stack.find(SimpleNamespace(model=llama.model, get_layer_stack=lambda: other)).owner is other
    )


@pytest.mark.parametrize(
    "says, reason", [(lambda: None, "gave a NoneType"), (lambda: 1 / 0, "raised ZeroDivisionError")]
)
def test_what_the_model_says_is_no_stack(says, reason, llama):
    """It is believed: nothing else is looked for."""
    with pytest.raises(stack.NoStack, match=rf"SimpleNamespace.get_layer_stack\(\) {reason}"):
        stack.find(SimpleNamespace(model=llama.model, get_layer_stack=says))


# What the set-up makes of it


def warned(caplog):
    return logged.warnings(caplog, loggers=logged.SET_UP)


def says_nothing():
    return SimpleNamespace(get_layer_stack=lambda: None)


@SET_UP
@pytest.mark.parametrize("make", [looped, endless, says_nothing])
def test_where_no_layers_are_found_one_warning_says_so(make, caplog):
    """From 0.5.16 on, unpatched, a walk without an end never returned. Other ranks are silent."""
    model = make()
    with pytest.raises(stack.NoStack) as reason:
        stack.find(model)
    assert prefill.set_up(model) is None
    [text] = warned(caplog)
    assert f"{type(model).__name__}: {str(reason.value).partition(',')[0]}" in text
    assert prefill.set_up(make(), tp_rank=1) is None and len(warned(caplog)) == 1


@SET_UP
def test_a_model_that_is_its_own_stack_stays_eager(llama, caplog):
    """A draft, or an embedding model without a head: nothing around the stack could run eagerly."""
    assert prefill.set_up(llama.model) is None
    [text] = warned(caplog)
    assert "LlamaModel: LlamaModel has the layers itself" in text


@SET_UP
def test_a_draft_without_layers_is_no_warning(caplog):
    """Draft layers of DeepSeek, GLM and others are no stack; the target has its graph."""

    class DraftNextN(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Module()
            self.model.decoder = torch.nn.Identity()

    caplog.set_level(logging.INFO, "sglang.srt.prefill_graph")
    found = prefill.capture(DraftNextN(), draft=True)
    assert getattr(found, "runner", found) is None and warned(caplog) == []
    [text] = [text for text in caplog.messages if "prefill CUDA graph" in text]
    assert text.startswith("Disable draft prefill CUDA graph because of the draft model: Draft")


@pytest.mark.revision(">=0.5.14,<0.5.16")
def test_their_piecewise_backend_keeps_to_what_it_compiles(llama, caplog):
    assert prefill.set_up(llama, "tc_piecewise") is not None
    assert warned(caplog) == []
    assert prefill.set_up(Holder(model=llama), "tc_piecewise") is None
    [text] = warned(caplog)
    assert "Holder: the tc_piecewise backend" in text
