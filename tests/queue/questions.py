"""Servers that stand for an engine which one question of tests/gpu is asked: right ones, and such
as have the fault that the question is about."""

from __future__ import annotations


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
    """For next_turn: keeps the first `keeps` tokens of prompts and answers. forgets: it goes on
    from another state."""

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
