"""The checkpoint of tests/gpu/images.py, as the releases read it, load it and process prompts."""

import asyncio
import importlib.machinery
import importlib.util
import inspect
import sys
from types import ModuleType, SimpleNamespace

import images
import models
import pytest
import torch
from host import checkpoints, late
from host import models as host_models
from host import process as host_process

with late.modules():
    from sglang.srt.entrypoints import engine
    from sglang.srt.managers import io_struct, multimodal_processor
    from sglang.srt.models import qwen3_5
    from sglang.srt.utils import hf_transformers_utils

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.19")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return images.write_small(tmp_path_factory.mktemp("qwen3-5"))


def test_the_release_reads_it_as_its_own_kind(folder):
    found = checkpoints.read(folder)
    assert type(found).__module__ == "sglang.srt.configs.qwen3_5"
    assert found.architectures == ["Qwen3_5ForConditionalGeneration"]
    text = found.text_config
    assert (text.num_hidden_layers, text.head_dim, len(text.linear_layer_ids)) == (8, 128, 6)
    assert found.image_token_id == images.vocabulary()["<|image_pad|>"] < text.vocab_size


def test_it_fills_every_parameter(folder):
    kind = qwen3_5.Qwen3_5ForConditionalGeneration
    model = host_models.construct(kind, checkpoints.read(folder), device="cpu")
    left, drawn, held = checkpoints.fill(model, checkpoints.drawn(images.CONFIG))
    assert left == [] and drawn == held


@pytest.fixture
def process(folder, monkeypatch):
    """process(call): each prompt with images, as the release's tokenizer manager processes it."""
    # the fast one wants a GPU
    args = host_process.default_server_args(
        str(folder),
        skip_tokenizer_init=True,
        mm_process_config={},
        disable_fast_image_processor=True,
    )
    host_process.use_server_args(args)
    if importlib.util.find_spec("decord") is None:  # imported, and needed by no image
        stand_in = ModuleType("decord")
        stand_in.VideoReader = type("VideoReader", (), {})
        stand_in.__spec__ = importlib.machinery.ModuleSpec("decord", None)
        monkeypatch.setitem(sys.modules, "decord", stand_in)
    multimodal_processor.import_processors("sglang.srt.multimodal.processors")
    made = multimodal_processor.get_mm_processor(
        checkpoints.read(folder),
        args,
        hf_transformers_utils.get_processor(str(folder), use_fast=True),
        "default",
    )

    def run(prompt, pictures):
        asked = SimpleNamespace(video_data=None, audio_data=None, rid="1", image_data=pictures)
        given = dict(image_data=pictures, input_text=list(prompt), request_obj=asked)
        return asyncio.run(made.process_mm_data_async(**given))

    return run


@pytest.mark.parametrize("name", ["image-128x96", "image-two"])
def test_the_releases_processor_puts_images_in_their_places(process, name):
    """Prompts are token ids: the processor writes them as text, and reads that again."""

    call = next(one for one in images.asks() if one.name == name)
    made = process(call.prompts[0], [images.picture(*one) for one in call.images[0]])
    found = made if isinstance(made, dict) else vars(made)
    ids, pad = list(found["input_ids"]), images.vocabulary()["<|image_pad|>"]
    # of 16 pixels, four in one
    patches = [width // 32 * (height // 32) for _, width, height in call.images[0]]
    assert ids.count(pad) == sum(patches) and len(ids) == images.length(
        call.prompts[0], call.images[0]
    )
    assert [token for token in ids if token != pad] == [
        token for token in call.prompts[0] if token != pad
    ]
    assert found["mrope_positions"].shape == (3, len(ids)) and not torch.equal(
        *found["mrope_positions"][1:]
    )
    assert sum(len(item.feature) for item in found["mm_items"]) == 4 * sum(patches)


def test_the_release_takes_a_call_of_both_kinds():
    call = next(one for one in images.asks() if one.kind == images.MIXED)
    words = images.request(call)
    assert words.keys() <= inspect.signature(engine.Engine.generate).parameters.keys()
    asked = io_struct.GenerateReqInput(**words)
    asked.normalize_batch_and_arguments()
    assert [bool(asked[number].contains_mm_input()) for number in range(3)] == [False, True, False]


def test_the_release_knows_the_engines_words():
    args = host_process.default_server_args(**models.engine(images.MODEL))
    assert args.mm_attention_backend == "triton_attn"
