"""What the scripts beside this are told on their command lines: where things lie, and what the
tree that lies there offers."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import kernels
import launch
import models
import modes
import untouched

HERE = Path(__file__).resolve().parent
PORTS = 20  # of each engine: the first for its server, the second for its process group


def count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is no number of 1 or more")
    return int(word)


def parser(description: str | None) -> argparse.ArgumentParser:
    """One whose help keeps the lines of a script's docstring."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, formatter_class=form)


def add_place(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The options that place_of reads. required: whether --out is."""
    add = parser.add_argument
    add("--out", type=Path, required=required, help="where results go")
    tree = "the folder that holds the patched sglang/ (default: the bundle's tree/)"
    add("--tree", type=Path, help=tree)
    site = "a folder of packages, or an unpacked bundle (default: the bundle around this file; may"
    add("--site", type=Path, action="append", help=f"{site} be given again)")


def add_trees(parser: argparse.ArgumentParser, why: str) -> None:
    """The options of scripts that also run the release's own tree, and that name an engine's
    attention kernels; a model with sparse attention has its own. why: of their default."""
    own = "what makes the release's own tree (default: the bundle's untouched/)"
    parser.add_argument("--untouched", type=Path, metavar="FOLDER", help=own)
    usual, other = kernels.ATTENTION
    attention = f"default {usual}, {why}; {other}, which servers choose by themselves on Hopper,"
    attention += " wants a bundle made with --flash"
    parser.add_argument("--attention", choices=kernels.ATTENTION, default=usual, help=attention)


def other_attention(options: argparse.Namespace) -> dict:
    """What a result says of its attention kernels: nothing where they are the usual ones."""
    usual = options.attention == kernels.FLASHINFER
    return {} if usual else {"attention": options.attention}


def place_of(options: argparse.Namespace) -> launch.Place:
    """Where things lie: the options, else the unpacked bundle around this file."""
    tree, sites = tree_of(options), sites_of(options)
    # the host's own description of gaps first, then the tree, so that nothing in a folder of
    # packages hides it
    head = [folder for folder in sites if (folder / "sitecustomize.py").is_file()]
    path = [HERE / "watch", *head, tree, *(folder for folder in sites if folder not in head)]
    place = launch.Place(tuple(folder.absolute() for folder in path), options.out.absolute())
    place.scratch.mkdir(parents=True, exist_ok=True)
    return place


def tree_of(options: argparse.Namespace) -> Path:
    """The folder that holds the patched sglang/."""
    return options.tree or HERE.parents[1] / "tree"


def make_untouched(place: launch.Place, options: argparse.Namespace) -> Path:
    """The release's own tree. Ends the run with a sentence where it cannot be made."""
    out = place.scratch / "untouched"
    try:
        untouched.make(tree_of(options), options.untouched or HERE.parents[1] / "untouched", out)
    except untouched.Unmade as reason:
        sys.exit(f"no untouched tree: {reason}")
    return out


def untouched_place(place: launch.Place, options: argparse.Namespace) -> launch.Place:
    """The same place with the release's own tree in place of the patched one."""
    own, tree = make_untouched(place, options).absolute(), tree_of(options).absolute()
    path = tuple(own if folder == tree else folder for folder in place.path)
    return launch.Place(path, place.out, place.python)


def sites_of(options: argparse.Namespace) -> list[Path]:
    """The folders of packages. One that holds hostsite/ and site/, as an unpacked bundle does,
    stands for these."""
    found = []
    for folder in options.site or [HERE.parents[1]]:
        inner = [folder / name for name in ("hostsite", "site") if (folder / name).is_dir()]
        found += inner or ([folder] if options.site else [])
    return found


def manifest_of(options: argparse.Namespace) -> dict:
    """What the bundle around this file, or around a folder of packages, says about itself; {} where
    there is none."""
    sites = (folder for site in options.site or [] for folder in (site, site.parent))
    near = [HERE.parents[1], *sites]
    found = [folder / "manifest.json" for folder in near if (folder / "manifest.json").is_file()]
    return json.loads(found[0].read_text()) if found else {}


def fields(options: argparse.Namespace) -> set[str]:
    """The names of the tree's ServerArgs, read and not imported: that takes half a minute."""
    folder = srt(options)
    # the latter from 0.5.20
    files = [folder / "server_args.py", *folder.glob("arg_groups/fields/*.py")]
    texts = (file.read_text(encoding="utf-8") for file in files)
    return {name for text in texts for name in re.findall(r"(?m)^ +(\w+): ", text)}


def takes_sparse(options: argparse.Namespace, patches: Sequence[dict]) -> bool:
    """Whether sparse attention can run in the tree's graph: where the queue brings that, and from
    0.5.13, whose attention op knows of a selection. There it asks for FlashAttention 3, which a
    bundle may say that it has trimmed."""
    if any(patch["name"].startswith("nsa/split-indexer-and-attention") for patch in patches):
        return True
    trimmed = [what for one in manifest_of(options).get("trimmed", []) for what in one["patterns"]]
    knows = mentions(options, "layers/radix_attention.py", "topk_indices")
    return knows and not any("flash_ops" in pattern for pattern in trimmed)


def enforced(model: str) -> bool:
    """Whether 0.5.10 to 0.5.13 keep the model from any prefill graph unless they are told."""
    return models.MODELS.get(model, {}).get("model_type") == "qwen3_next"


def knows_experts(options: argparse.Namespace) -> bool:
    """Whether the tree's NemotronH may have layers of experts. 0.5.5's may not: it dies of their
    letter while it is made (KeyError: 'E', ALL_DECODER_LAYER_TYPES, models/nemotron_h.py:304)."""
    file = "models/nemotron_h.py"
    return not (srt(options) / file).is_file() or mentions(options, file, "MOE: ")


def serves_logprobs(options: argparse.Namespace, mode: str) -> bool:
    """Whether the mode's graph runs prefills whose log-probabilities are wanted. A piecewise one
    never does up to 0.5.6: such a request has those of its last prompt token, and the runner takes
    none of the prompt's own (managers/scheduler.py:1415 in 0.5.6.post2, can_run,
    model_executor/piecewise_cuda_graph_runner.py:352). Nor does it from 0.5.16 on: what follows its
    layers is captured too (model_executor/runner/prefill_cuda_graph_runner.py:707 in 0.5.16)."""
    if mode not in (modes.PIECEWISE, modes.INDUCTOR):
        return True
    never = {
        "managers/scheduler.py": "req.logprob_start_len >= len(",
        "model_executor/runner/prefill_cuda_graph_runner.py": "_uses_eager_prefill_tail",
    }
    return not any(mentions(options, name, sign) for name, sign in never.items())


def mentions(options: argparse.Namespace, name: str, sign: str) -> bool:
    """Whether a file of the tree's srt/ has this text; a file that is not there has none."""
    file = srt(options) / name
    return file.is_file() and sign in file.read_text(encoding="utf-8")


def srt(options: argparse.Namespace) -> Path:
    return tree_of(options) / "sglang/srt"


def say(text: str) -> None:
    """One line, written at once: threads that speak together keep their lines apart."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}\n", end="", flush=True)
