"""One process that sglang takes for a whole deployment: arguments, groups of one rank over gloo."""

import contextlib
import dataclasses
import functools
import inspect
import os
import socket
import types
from unittest import mock

import torch

from . import late

with late.modules():
    from sglang.srt import distributed, server_args
    from sglang.srt.layers import dp_attention


def default_server_args(model_path="dummy", **changes):
    """ServerArgs with every field at its default, except `changes`; not resolved, because resolving
    inspects the host.

    Raises TypeError for a change that names no field of this release.
    """
    kind, chosen = server_args.ServerArgs, {"model_path": model_path, "device": "cpu", **changes}
    if not dataclasses.is_dataclass(kind):
        return kind(**chosen)  # from 0.5.20 on making the object resolves nothing
    args = kind.__new__(kind)  # __init__ would go on and resolve
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(chosen.keys() - fields.keys())
    if unknown:
        raise TypeError(f"ServerArgs of this release has no {', '.join(unknown)}")
    for name, field in fields.items():
        if field.default is not dataclasses.MISSING:
            setattr(args, name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            setattr(args, name, field.default_factory())
    for name, value in chosen.items():
        setattr(args, name, value)
    return args


def with_default_sizes(largest, **changes):
    """Server arguments behind the release's own choice of sizes up to `largest`, up to 0.5.13."""
    args = default_server_args(piecewise_cuda_graph_max_tokens=largest, **changes)
    args.piecewise_cuda_graph_tokens = args._generate_piecewise_cuda_graph_tokens()
    return args


def by_rules(architecture="LlamaForCausalLM", is_multimodal=False, **changes):
    """Server arguments behind the release's own rules for its piecewise graph, where it has any (up
    to 0.5.13); they find a model of that architecture."""
    args, names = (
        default_server_args(**changes),
        types.SimpleNamespace(architectures=[architecture]),
    )
    args.model_config = types.SimpleNamespace(
        is_piecewise_cuda_graph_disabled_model=False,
        is_multimodal=is_multimodal,
        hf_config=names,
        hf_text_config=names,
    )
    if hasattr(args, "_handle_piecewise_cuda_graph"):
        args._handle_piecewise_cuda_graph()
    return args


def known():
    """The names of the release's server arguments."""
    kinds = server_args.ServerArgs.__mro__
    return {name for kind in kinds for name in vars(kind).get("__annotations__", {})}


def offered(**words):
    """Those of `words` that are server arguments of this release."""
    return {name: value for name, value in words.items() if name in known()}


def extra_buffer():
    """What asks for a prefix cache that keeps states of prefills; nothing up to 0.5.6."""
    names = "mamba_radix_cache_strategy", "mamba_scheduler_strategy"
    return offered(**dict.fromkeys(names, "extra_buffer"))


def use_server_args(args):
    """Make `args` the ones that layers look up."""
    # up to 0.5.8 its value reaches the Mamba layers through this variable
    if getattr(args, "mamba_ssm_dtype", None):
        os.environ["SGLANG_MAMBA_SSM_DTYPE"] = args.mamba_ssm_dtype
    try:
        from sglang.srt.runtime_context import SpawnRanks, publish
    except ImportError:
        server_args.set_global_server_args_for_scheduler(args)
    else:  # newest releases want the rank from whoever starts the process
        publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0))


@contextlib.contextmanager
def cpu_device_module():
    """A CUDA build of torch names torch.cuda as the device module even where there is no device."""
    real = torch.get_device_module

    def device_module(device=None):
        return torch.cpu if device is None and not torch.cuda.is_available() else real(device)

    with mock.patch.object(torch, "get_device_module", device_module):
        yield


def call(function, **values):
    """function(…) with those of `values` that it takes in this release."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in values.items() if name in known})


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@functools.lru_cache(maxsize=1)
def start_groups():
    """World, tensor-, expert- and pipeline-parallel groups of this process, made once."""
    distributed.init_distributed_environment(
        backend="gloo",
        world_size=1,
        rank=0,
        local_rank=0,
        distributed_init_method=f"tcp://127.0.0.1:{free_port()}",
    )
    # newer releases read the widths from the published arguments
    call(distributed.initialize_model_parallel, tensor_model_parallel_size=1)


def start_dp_attention(args, hidden_size, dtype):
    """What a model runner does before it loads a model: attention data parallelism of one rank."""
    model_config = types.SimpleNamespace(
        hidden_size=hidden_size,
        dtype=dtype,
        hf_config=types.SimpleNamespace(hybrid_override_pattern=None),
    )
    call(dp_attention.initialize_dp_attention, server_args=args, model_config=model_config)
