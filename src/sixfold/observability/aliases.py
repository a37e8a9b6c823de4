"""vLLM's names for metrics that mean the same here, for dashboards and inference gateways that look for them.

Only equal meanings have an alias. A gateway that balances by load reads `vllm:num_requests_waiting`,
`vllm:num_requests_running`, `vllm:kv_cache_usage_perc`, `vllm:cache_config_info` and `vllm:lora_requests_info`.

Sources: vLLM v0.11, `vllm/v1/metrics/loggers.py`; the model server protocol of the Gateway API inference extension.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["VLLM", "vllm_families"]

VLLM: dict[str, tuple[str, ...]] = {
    "num_requests_running": ("num_requests_running",),
    "num_requests_waiting": ("num_requests_waiting",),
    "kv_cache_usage_ratio": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "num_preemptions": ("num_preemptions",),
    "prompt_tokens": ("prompt_tokens", "prefix_cache_queries"),
    "prefix_cache_hits": ("prefix_cache_hits",),
    "generation_tokens": ("generation_tokens",),
    "request_success": ("request_success",),
    "time_to_first_token_seconds": ("time_to_first_token_seconds",),
    "inter_token_latency_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "e2e_request_latency_seconds": ("e2e_request_latency_seconds",),
    "request_queue_time_seconds": ("request_queue_time_seconds",),
    "request_prefill_time_seconds": ("request_prefill_time_seconds",),
    "request_decode_time_seconds": ("request_decode_time_seconds",),
    "request_prompt_tokens": ("request_prompt_tokens",),
    "request_generation_tokens": ("request_generation_tokens",),
}
"""Name without `sixfold_` -> names without `vllm:`; of a name that vLLM has changed, the old one follows."""


def vllm_families(families: Iterable[Metric], *, block_size: int, num_blocks: int) -> Iterator[Metric]:
    """Copies under their aliases, and what a gateway wants to know besides.

    Args:
        families: ours.
        block_size: tokens of a KV block.
        num_blocks: of the cache.
    """
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.samples import Sample

    for family in families:
        own = family.name.removeprefix("sixfold_")
        for alias in VLLM.get(own, ()):
            renamed = Metric(f"vllm:{alias}", family.documentation, family.type)
            for sample in family.samples:
                name = f"vllm:{alias}{sample.name.removeprefix(family.name)}"
                renamed.samples.append(Sample(name, {**sample.labels, "engine": "0"}, sample.value))
            yield renamed
    cache = GaugeMetricFamily(
        "vllm:cache_config_info", "the KV cache", labels=["engine", "block_size", "num_gpu_blocks"]
    )
    cache.add_metric(["0", str(block_size), str(num_blocks)], 1)
    yield cache
    lora = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "adapters in use: there are none",
        labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    lora.add_metric(["0", "", ""], time.time())
    yield lora
