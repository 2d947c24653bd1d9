import dataclasses
import os


@dataclasses.dataclass
class ServerArgs:
    model_path: str = ""
    port: int = 0
    enable_piecewise_cuda_graph: bool = False
    piecewise_cuda_graph_tokens: list = None
    piecewise_cuda_graph_compiler: str = "eager"
    if os.environ.get("FAKE_FAULT") != "no-breakable":
        enable_breakable_cuda_graph: bool = False
    cuda_graph_max_bs: int = 0
    max_running_requests: int = 0
    sleep_on_idle: bool = False
    enable_mixed_chunk: bool = False
    enable_return_hidden_states: bool = False
    enable_return_routed_experts: bool = False
    context_length: int = 0
    json_model_override_args: str = "{}"
    chunked_prefill_size: int = 0
    tp_size: int = 1

    def check_server_args(self) -> None:
        pass
