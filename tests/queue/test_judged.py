"""What tests/gpu takes of two engines' answers and logs, and of compiled kernels."""

import json
import re
import sys
from types import SimpleNamespace

import gpumodules
import pytest
from fakes import ROOT

images = gpumodules.fixture("images")


def image_engine(images, replayed, off=()):
    """An engine's result: calls of kinds in `replayed` on graphs, those in `off` otherwise."""
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


def image_faults(images, mine, eager):
    return [check.what for check in images.compared(mine, eager, True) if not check.good]


@pytest.mark.parametrize(
    "replayed, off, wrong",
    [
        (("text",), (), []),
        ((), (), ["prefills of text calls were replayed"]),
        (("text", "image"), (), ["prefills of image calls were not replayed"]),
        (("text",), ("image-two",), ["breakable agrees with eager prefill"]),
        (("text",), ("text-last",), ["breakable agrees with eager prefill"]),
    ],
)
def test_text_on_graphs_and_images_without_are_good(images, replayed, off, wrong):
    mine, eager = image_engine(images, replayed, off), image_engine(images, ())
    assert image_faults(images, mine, eager) == wrong


def test_an_image_that_changes_nothing_is_a_fault(images):
    one = image_engine(images, {images.TEXT})
    eager = image_engine(images, ())
    for each in (one["answers"], eager["answers"]):
        each["image-other-2"] = each["image-other-1"]
    assert image_faults(images, one, eager) == [
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


agree, machine_code = map(gpumodules.fixture, ("agree", "machine_code"))


def answers(*tokens, off=0.0):
    """One pass: a call of one prompt for each token, and one of two prompts."""

    def answer(token):
        return {"tokens": [token] * 8, "logprobs": [-1.0 + off] * 8, "best": [[-1.0, -3.0]] * 8}

    calls = {f"single-{token}": {"answers": [answer(token)]} for token in tokens}
    return {"cold": calls | {"batch-2": {"answers": [answer(1), answer(2)]}}}


def test_two_engines_have_the_same_bits_in_calls_of_one_prompt(agree):
    assert agree.same_bits(answers(3, 4), answers(3, 4)).good
    assert not agree.same_bits(answers(3, 4), answers(3, 4, off=1e-7)).good
    other = answers(3, 4)
    other["cold"]["batch-2"]["answers"][0]["logprobs"][0] -= 0.01
    assert agree.same_bits(answers(3, 4), other).good, "requests of one call meet in other forwards"


@pytest.mark.parametrize("off, good", [(0.01, True), (0.2, False)])
def test_the_patched_answers_are_held_against_every_reference(off, good, agree):
    same = (agree.UNTOUCHED, agree.PATCHED, agree.AGAIN)
    passes = {name: answers(3) for name in same} | {agree.RELEASE_SCAN: answers(3, off=off)}
    found = agree.compared("nemotron-h", passes)
    assert {check.what: check.good for check in found[:2]} == {
        "agrees with untouched, cold": True,
        "agrees with release-scan, cold": good,
    }
    assert [check.good for check in found[2:]] == [True]


@pytest.mark.parametrize(
    ("model", "reference", "off", "good"),
    [
        ("nemotron-h", "untouched", 0.025, True),
        ("nemotron-h", "untouched", 0.031, False),
        ("nemotron-h", "release-scan", 0.025, False),
        ("llama", "untouched", 0.025, False),
    ],
)
def test_other_kernels_may_be_apart_as_far_as_rounding_goes(agree, model, reference, off, good):
    names = (reference, agree.PATCHED, agree.AGAIN)
    passes = {name: answers(3, 4) for name in names} | {reference: answers(3, 4, off=off)}
    assert [check.good for check in agree.compared(model, passes)] == [good, True]


LOOP = """
.L_x_1:
  /*10*/ HGMMA.64x64x16.F32.BF16 R24, {left}, gdesc[UR12].tnspB, R24, gsb0 ;
  /*20*/ WARPGROUP.DEPBAR.LE gsb0, {wait} ;
  /*30*/ @P0 BRA `(.L_x_{label}) ;
.L_x_2:
"""


@pytest.mark.parametrize(
    "left, wait, label, found",
    [
        ("R56", "0x1", 1, 1),
        ("R56", "0x0", 1, 0),  # waited for
        ("gdesc[UR8]", "0x1", 1, 0),  # from shared memory
        ("R56", "0x1", 2, 0),  # no loop
    ],
)
def test_products_under_way_where_a_loop_begins_anew(left, wait, label, found, machine_code):
    code = LOOP.format(left=left, wait=wait, label=label)
    assert len(machine_code.products_over_back_edges(code)) == found


# Servers that stand for an engine which one question is asked: right ones, and such as have the
# fault that the question is about.


def answered(tokens: list[int], cached: int = 0) -> dict:
    """As sglang.Engine.generate() returns it."""
    info = {
        "cached_tokens": cached,
        "output_token_logprobs": [(-1.0, token) for token in tokens],
        "output_top_logprobs": [[(-1.0, token), (-9.0, 0)] for token in tokens],
    }
    return {"output_ids": tokens, "meta_info": info}


class Server:
    """Answers follow from the prompt, and from `off` of it."""

    def generate(self, input_ids, sampling_params, return_logprob=False, **_) -> list[dict]:
        each = sampling_params if isinstance(sampling_params, list) else [sampling_params]
        each *= len(input_ids) // len(each)
        return [
            self.answer(tuple(prompt), words["max_new_tokens"])
            for prompt, words in zip(input_ids, each, strict=True)
        ]

    def answer(self, prompt: tuple[int, ...], count: int) -> dict:
        off, cached = self.off(prompt)
        tokens = [sum(prompt) % 997 + off + number for number in range(count)]
        self.keep(prompt, tokens)
        return answered(tokens, cached)

    def off(self, prompt: tuple[int, ...]) -> tuple[int, int]:
        """How far the answer is off, and how many tokens were cached."""
        raise NotImplementedError

    def keep(self, prompt: tuple[int, ...], tokens: list[int]) -> None:
        pass


class Decoded(Server):
    """For next_turn: keeps beginnings with answers. forgets: goes on from another state."""

    def __init__(self, keeps: int = 256, forgets: bool = False) -> None:
        self.keeps, self.forgets, self.known = keeps, forgets, set()

    def flush_cache(self) -> None:
        self.known = set()

    def off(self, prompt):
        cached = max((n for n in range(len(prompt)) if prompt[:n] in self.known), default=0)
        return 500 * bool(cached and self.forgets), cached

    def keep(self, prompt, tokens):
        self.known.add((prompt + tuple(tokens))[: self.keeps])


class Mixed(Decoded):
    """For mixed_states: keeps prompts' beginnings. forgets: of a state that was never written."""

    def __init__(self, keeps: int = 640, forgets: bool = False) -> None:
        super().__init__(keeps, forgets)

    def off(self, prompt):
        begun = prompt[: self.keeps] in self.known
        return 500 * (begun and self.forgets), self.keeps if begun else 0

    def keep(self, prompt, tokens):
        self.known.add(prompt[: self.keeps])


MIXED = [{"mode": "MIXED"}] * 40 + [{"mode": "EXTEND"}] * 10
SERVERS = {"next_turn": Decoded, "mixed_states": Mixed}
CONTROL = "answers otherwise without queue, as it must"
# the name of a question, the words of its server, and what is at fault there
FAULTS = [
    ("next_turn", {"forgets": True}, "next turns answer as without a cache"),
    ("mixed_states", {"forgets": True}, "shared beginnings answer as without a cache"),
]


@pytest.fixture
def load(monkeypatch):
    """A question's module."""
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.16"))
    return lambda name: gpumodules.load(monkeypatch, name)


def asked(question, server, prefills=MIXED) -> dict:
    """What an engine's process writes of a server. The larger questions take seconds."""
    return question.asked(server, {}) | {"prefills": prefills}


def faults(question, result: dict, control: bool = False) -> dict[str, str]:
    """What is judged to be wrong, and why."""
    found = question.judged(result, control)
    return {check.what: check.why for check in found if not check.good}


@pytest.mark.parametrize(("name", "words", "wrong"), FAULTS)
def test_a_right_server_is_good_and_a_wrong_one_what_a_control_must_show(load, name, words, wrong):
    question, kind = load(name), SERVERS[name]
    right, broken = asked(question, kind()), asked(question, kind(**words))
    assert [*faults(question, right)] == [] and [*faults(question, broken)] == [wrong]
    assert [*faults(question, broken, control=True)] == []
    assert [*faults(question, right, control=True)] == [CONTROL]


def test_what_shows_nothing_is_a_fault(load):
    for name, words, prefills, wrong in (
        ("next_turn", {"keeps": 20}, MIXED, "next turns went on from decoded states"),
        ("mixed_states", {}, MIXED[-1:], "long prompts were prefilled beside decoding requests"),
    ):
        question = load(name)
        assert [*faults(question, asked(question, SERVERS[name](**words), prefills))] == [wrong]


@pytest.mark.parametrize(("version", "starts"), [("0.5.6.post2", [3, 1]), ("0.5.7", [4, 2])])
def test_log_probabilities_begin_where_a_release_allows(load, version, starts, monkeypatch):
    """0.5.6 refuses a start behind the prompt."""
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__=version))
    assert load("engine").starts([[1, 2, 3, 4], [5, 6]]) == starts


def test_an_engine_script_writes_what_it_asked_and_saw(load, monkeypatch, tmp_path):
    """engine.py: the end that runs in the engine's own process."""
    side, ended = load("engine"), []
    engine = SimpleNamespace(shutdown=lambda: ended.append((tmp_path / "a.json").is_file()))
    monkeypatch.setattr(side, "start", lambda plan: (engine, {"start_s": 1.0}))
    monkeypatch.setattr(side, "watched", lambda pattern: [{"mode": pattern}])
    question = SimpleNamespace(asked=lambda asked, plan: {"same": asked is engine})
    monkeypatch.setitem(sys.modules, "some_question", question)
    plan = tmp_path / "plan.json"
    told = {"out": str(tmp_path / "a.json"), "watch": "seen", "question": "some_question"}
    plan.write_text(json.dumps(told))
    monkeypatch.setattr(sys, "argv", ["engine.py", str(plan)])
    side.main()
    written = json.loads((tmp_path / "a.json").read_text())
    assert written == {"start_s": 1.0, "same": True, "prefills": [{"mode": "seen"}]}
    assert (tmp_path / "a.json.ready").is_file() and ended == [True], "written before it ends"


OURS = ROOT / "overlay/python/sglang/srt/prefill_graph/breakable/runner.py"
UPSTREAMS = (  # 0.5.12.post1, 0.5.23
    "[2026-11-24 20:27:08] Capture cuda graph end. Time elapsed: 60.44 s. mem usage=0.08 GB. avail",
    "Capture target prefill CUDA graph end. elapsed=19.93 s, mem usage=1.29 GB, avail mem=80.98 GB",
)


judging = gpumodules.fixture("judging")


@pytest.mark.parametrize("kind", ["breakable", "piecewise"])
def test_releases_and_the_queues_runners_are_understood(judging, kind):
    """The words are those of the overlay: a page that shows no seconds has lost them."""
    assert judging.captures("\n".join(UPSTREAMS)) == [
        judging.Capture("cuda graph", 60.44, 0.08),
        judging.Capture("target prefill CUDA graph", 19.93, 1.29),
    ]
    said = re.search(r'"(Captured the %s [^"]*)"', OURS.read_text(encoding="utf-8"))[1]
    log = f"{UPSTREAMS[0]}\n[2026-11-24 20:27:14] {said % (kind, 5.65, -0.05, 136.98)}\n"
    assert judging.captures(log)[1:] == [judging.Capture(f"{kind} prefill graph", 5.65, -0.05)]
