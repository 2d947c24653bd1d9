"""The token that the draft model reads behind a chunk of a prompt with an image: the release's own
choice."""

import pytest
from host import late

with late.modules():
    from sglang.srt.managers import schedule_batch
    from sglang.srt.sampling import sampling_params

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.14")
VOCABULARY = 100
IMAGE = 1_000_003  # as the release marks the places of an image


@pytest.fixture(scope="module")
def prompt():
    """Five tokens of text, four places of an image, one token of text."""
    tokens = [1, 2, 3, 4, 5, IMAGE, IMAGE, IMAGE, IMAGE, 6]
    return schedule_batch.Req(
        "one", "", tokens, sampling_params.SamplingParams(), vocab_size=VOCABULARY
    )


@pytest.mark.parametrize("end", range(1, 11))
def test_the_draft_model_reads_no_place_of_an_image(prompt, end):
    prompt.fill_len = end
    expected = {**dict(enumerate([1, 2, 3, 4, 5])), 9: 6}.get(end)
    assert schedule_batch._compute_chunked_req_next_prompt_token(prompt) == expected
