"""One row per point: what a point's requests, chunks, counters and polled series come to."""

# Column → unit ("" for names, counts and settings). The order is the order in tables/points.csv.
COLUMNS: dict[str, str] = {
    # which point
    "study": "", "experiment": "", "kind": "", "slug": "", "model": "", "start": "", "repeat": "", "point": "",
    "path": "", "key": "", "status": "", "cause": "", "detail": "", "session_id": "", "order": "", "boot": "",
    "machine_id": "", "started_at": "",
    # the server's settings that studies vary (as given; null = the server's default), and all of them as JSON
    "options": "", "max_model_len": "tokens", "max_num_seqs": "", "max_num_batched_tokens": "tokens",
    "kv_cache_dtype": "", "enable_prefix_caching": "", "enforce_eager": "", "attention_backend": "",
    # the load
    "workload": "", "workload_kind": "", "concurrency": "", "rate_rps": "1/s", "input_tokens": "tokens",
    "output_tokens": "tokens", "requests_asked": "", "shared_prefix_tokens": "tokens",
    # what happened (measured requests only: warm-up rows never count)
    "requests_ok": "", "requests_failed": "", "input_tokens_total": "tokens", "output_tokens_total": "tokens",
    "duration_s": "s", "steady_s": "s",
    "output_throughput_tok_s": "tok/s", "steady_throughput_tok_s": "tok/s", "total_throughput_tok_s": "tok/s",
    "request_throughput_rps": "1/s", "per_request_tok_s": "tok/s", "goodput_rps": "1/s",
    # latency over successful requests; itl_* over gaps, itl_token_* gaps divided by their tokens
    **{f"{metric}_{stat}_ms": "ms" for metric in ("ttft", "itl", "itl_token", "tpot", "e2e")
       for stat in ("mean", "p50", "p90", "p95", "p99", "max")},
    "ttft_n": "", "itl_n": "", "tokens_per_chunk": "tokens", "send_lag_p50_ms": "ms", "send_lag_p99_ms": "ms",
    # the server's own figures: counter deltas over the point, polled series
    "preemptions": "", "prefix_queries": "tokens", "prefix_hits": "tokens", "kv_cache_tokens": "tokens",
    "kv_cache_bytes": "bytes", "kv_usage_max": "1", "running_mean": "", "running_max": "", "waiting_mean": "",
    "waiting_max": "", "capacity_requests": "", "ready_s": "s",
    # the client and the power meter
    "client_cpu_s": "s", "client_us_per_token": "µs", "client_lag_p99_ms": "ms", "client_lag_max_ms": "ms",
    "energy_j": "J", "joules_per_token": "J",
    # may it be believed: valid, suspect or invalid; reasons as JSON [{"reason", "severity", "values"}]
    "verdict": "", "reasons": "",
}  # fmt: skip
