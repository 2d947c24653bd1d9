"""All that the queue lays on one release as one file, for `git apply` or `patch`."""

from __future__ import annotations

from ..files.tree import LISTING, listing_text, own_listing, sha256
from ..laying.selection import Selection
from ..outcome import Refused
from ..queue.series import PROVENANCE, as_patch
from ..upstream.source import Source

HEAD = """\
{version}: sglang {public} with the sglang patch queue on it.

In a checkout of {tag}: git apply FILE.
In the folder that holds an installed sglang/: patch -p2 -i FILE.
Then compare every file: python -m sglang.srt.prefill_graph --verify.

"""


def one_patch(selection: Selection, pristine: Source, version: str) -> bytes:
    """The overlay and every patch in the series' order, each at its exact lines, with their
    headers; last the listing that `--verify` compares with.

    A file that several patches change is in it several times: both programs lay them in order. No
    diff is made anew, so that the same queue gives the same bytes on every host. version: as a
    patched release calls itself. Raises Refused where a patch does not fit.
    """
    planned = selection.replay(pristine.read)
    if planned.problems:
        raise Refused(planned.problems)
    pin = selection.pin
    head = HEAD.format(version=version, public=pin.version, tag=pin.tag).encode()
    parts = [head, *selection.stack(planned).values()]
    if PROVENANCE in selection.overlay:
        laid = {path: sha256(content) for path, content in planned.files.items()}
        after = listing_text(own_listing(pristine.listing() | laid))
        parts.append(as_patch({LISTING: after.encode()}))
    return b"".join(parts)
