"""Each gate fires on a planted fault and stays silent without it; a verdict is the gravest reason's."""

import json
from dataclasses import replace

import numpy as np
import pytest

from made_points import closed_rows, counters, failed, point, request
from servelab import model_card, summary, texts, validity
from servelab.config.schema import Study
from servelab.gates import client, machine, prefix, requests, server, stability
from servelab.gates.evidence import INVALID, NOTE, SUSPECT, Evidence
from servelab.spec import Workload

# 2 × 10^8 matrix parameters or so: a prompt of 64 tokens is 2.6 × 10^10 FLOPs
CARD = model_card.from_config(
    {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
    }
)
LIMITS = {"flops": 1e12, "bytes_per_s": 1e11}


def evidence(record, limits=LIMITS, main="m1", **row):
    made = summary.row(record, "load_sweep", "p", None) | row
    return Evidence(made, record, CARD, limits, main)


def healthy(**meta):
    """2 slots × 20 requests, nothing wrong: 50 ms to the first token, 10 ms a token with a little noise."""
    rng = np.random.default_rng(0)
    rows, at = [], [0.0, 0.0]
    for i in range(40):
        one = request(i, at[i % 2], slot=i % 2, gap_s=0.01 * (1 + 0.02 * rng.standard_normal()))
        rows.append(one)
        at[i % 2] = one["end_s"]
    return point(rows, **meta)


def workload(**fields):
    base = {"kind": "closed", "input_tokens": 64, "output_tokens": 16, "concurrency": 2, "requests": 40}
    return Workload(**{**base, **fields})


def reasons(record, **how):
    return {r.reason: r.severity for r in validity.judge_point(evidence(record, **how))}


def test_a_healthy_point_is_valid_and_only_told_that_its_tail_is_not_known():
    """No gate accuses a point without a fault; 40 requests have no p95 interval, and the note says so."""
    found = validity.judge_point(evidence(healthy()))
    assert validity.verdict(found) == "valid"
    assert {r.reason for r in found} == {"too_few_requests"}


def test_a_failed_point_has_one_reason():
    """Nothing else is asked of a point that failed."""
    record = point([failed(0, 0.0)], status="failed", cause="server_died", detail="out of memory")
    assert reasons(record) == {"point_failed": INVALID}


@pytest.mark.parametrize(
    "planted",
    [
        failed(40, 1.0, cause="output_tokens"),
        failed(40, 1.0, cause="usage_missing"),
        request(40, 1.0, input_tokens_asked=65),
        request(40, 1.0, output_tokens_asked=17),
    ],
    ids=["cause", "no usage", "input", "output"],
)
def test_tokens_not_as_asked_fires_on_one_wrong_request(planted):
    """One request with other tokens, marked by the client or seen in the rows, makes the point invalid."""
    record = point([*closed_rows(2, 20), planted])
    assert requests.tokens_not_as_asked(evidence(record)).severity == INVALID
    assert requests.tokens_not_as_asked(evidence(healthy())) is None


def test_failed_requests_are_suspect_when_few_and_invalid_when_many():
    """One in 201 is suspect, one in 41 invalid, none silent; failed warm-ups are not counted."""
    few = point([*closed_rows(2, 100), failed(200, 1.0)])
    many = point([*closed_rows(2, 20), failed(40, 1.0, cause="reset")])
    assert requests.requests_failed(evidence(few)).severity == SUSPECT
    found = requests.requests_failed(evidence(many))
    assert (found.severity, found.values["most"]) == (INVALID, "reset")
    warm = point([*closed_rows(2, 20), failed(0, -1.0, role="warmup")])
    assert requests.requests_failed(evidence(warm)) is None


def test_fewer_requests_than_asked_fires_only_when_some_are_missing():
    """38 of 40."""
    assert requests.fewer_requests_than_asked(evidence(point(closed_rows(2, 19), workload()))) is not None
    assert requests.fewer_requests_than_asked(evidence(point(closed_rows(2, 20), workload()))) is None


@pytest.mark.parametrize(("each", "silent"), [(30, False), (200, True)])
def test_too_few_requests_for_a_tail(each, silent):
    """60 requests have no p99; 400 have."""
    found = requests.too_few_requests(evidence(point(closed_rows(2, each))))
    assert (found is None) == silent
    if found:
        assert (found.severity, found.values["percentile"], found.values["needed"]) == (NOTE, 95, 72)


def test_too_few_gaps_counts_gaps():
    """10 requests of 3 tokens have 20 gaps; 40 of 16 have 600."""
    assert requests.too_few_gaps(evidence(point(closed_rows(2, 5, output_tokens=3)))) is not None
    assert requests.too_few_gaps(evidence(healthy())) is None


def trap():
    """The field notes' trap: one prompt for every request with the prefix cache on; first tokens come at once."""
    metrics = counters(
        {"prefix_cache_queries": 0, "prefix_cache_hits": 0},
        {"prefix_cache_queries": 40 * 64, "prefix_cache_hits": 39 * 48},
    )
    return point(closed_rows(2, 20, ttft_s=0.002), workload(same_prompt=True), metrics=metrics)


def test_the_field_notes_trap_is_invalid_for_independent_reasons():
    """By the hit counter, by the machine's FLOP/s, and by the load itself: each alone is enough."""
    found = reasons(trap())
    assert {"prefix_hits", "prefill_rate", "same_prompt"} <= {r for r, s in found.items() if s == INVALID}


def test_the_trap_is_caught_by_the_machine_alone_when_nothing_is_declared_or_counted():
    """No counter, no same_prompt in the spec, a server that claims nothing: the FLOP/s still convict."""
    record = point(closed_rows(2, 20, ttft_s=0.002, cached_tokens=48), workload())
    found = reasons(record)
    assert found["prefill_rate"] == INVALID
    assert "prefix_hits" not in found and "same_prompt" not in found


def test_one_prompt_is_no_fault_where_the_cache_is_off():
    """With the prefix cache switched off every request is read in again."""
    record = point(closed_rows(2, 20), workload(same_prompt=True))
    assert prefix.same_prompt(evidence(record, enable_prefix_caching=False)) is None
    assert prefix.same_prompt(evidence(record)).severity == INVALID


def test_prefix_hits_are_no_fault_where_prompts_share_a_beginning():
    """E6 wants them."""
    metrics = counters(
        {"prefix_cache_queries": 0, "prefix_cache_hits": 0},
        {"prefix_cache_queries": 2560, "prefix_cache_hits": 1000},
    )
    shared = point(closed_rows(2, 20), workload(shared_prefix_tokens=32), metrics=metrics)
    unshared = point(closed_rows(2, 20), workload(), metrics=metrics)
    assert prefix.prefix_hits(evidence(shared)) is None
    assert prefix.prefix_hits(evidence(unshared)).severity == INVALID
    assert prefix.prefix_hits(evidence(healthy())) is None


def test_a_single_hit_in_a_million_is_suspect_not_invalid():
    """Something was shared; the figures hardly move."""
    metrics = counters(
        {"prefix_cache_queries": 0, "prefix_cache_hits": 0},
        {"prefix_cache_queries": 10**6, "prefix_cache_hits": 16},
    )
    assert prefix.prefix_hits(evidence(healthy(metrics=metrics))).severity == SUSPECT


def test_hits_that_preemptions_account_for_are_noted():
    """A server may count requests that resume: two preemptions explain up to two requests' tokens, no more."""
    before = {"prefix_cache_queries": 0, "prefix_cache_hits": 0, "num_preemptions": 0}
    few = counters(before, {"prefix_cache_queries": 2560, "prefix_cache_hits": 150, "num_preemptions": 2})
    more = counters(before, {"prefix_cache_queries": 2560, "prefix_cache_hits": 170, "num_preemptions": 2})
    assert prefix.prefix_hits(evidence(healthy(metrics=few))).reason == "prefix_hits_resumed"
    assert prefix.prefix_hits(evidence(healthy(metrics=more))).reason == "prefix_hits"


def test_prefill_rate_is_silent_for_prompts_that_were_read_in():
    """64 tokens in 50 ms are 0.5 TFLOP/s: below the limit of 1, above one of 0.1."""
    assert machine.prefill_rate(evidence(healthy())) is None
    found = machine.prefill_rate(evidence(healthy(), limits={"flops": 1e11}))
    assert found.severity == INVALID
    assert found.values["ratio"] > 1.1


def test_prefill_rate_sees_a_burst_that_is_possible_for_each_request_alone():
    """16 prompts answered together after 50 ms: each alone is possible, all of them in that time are not."""
    rows = [request(i, 0.0, slot=i) for i in range(16)]
    record = point(rows, workload(concurrency=16, requests=16))
    alone = point(rows[:1], workload(concurrency=1, requests=1))
    assert machine.prefill_rate(evidence(alone)) is None
    assert machine.prefill_rate(evidence(record)).severity == INVALID


def test_prefill_rate_does_not_count_tokens_that_are_shared_by_design():
    """With 60 of 64 tokens shared a first token after 5 ms is possible."""
    rows = closed_rows(2, 20, ttft_s=0.005)
    assert machine.prefill_rate(evidence(point(rows, workload(shared_prefix_tokens=60)))) is None
    assert machine.prefill_rate(evidence(point(rows, workload()))) is not None


def test_decode_rate_fires_when_weights_would_be_read_faster_than_memory_allows():
    """0.4 GB of weights each 10 ms are 40 GB/s; each 0.1 ms 4 TB/s."""
    fast = point(closed_rows(2, 20, gap_s=0.0001))
    assert machine.decode_rate(evidence(healthy())) is None
    assert machine.decode_rate(evidence(fast)).severity == INVALID


def test_decode_rate_allows_for_weights_that_fit_in_the_cache():
    """What a processor's cache holds need not come from memory."""
    fast = point(closed_rows(2, 20, gap_s=0.0001))
    assert machine.decode_rate(evidence(fast, limits={**LIMITS, "cache_bytes": 1e9})) is None


def test_a_chunk_of_many_tokens_counts_as_one_step():
    """Ten tokens a chunk are no evidence of ten steps."""
    rows = closed_rows(2, 20)
    for row in rows:
        row |= {"chunk_s": [row["chunk_s"][0], row["chunk_s"][-1]], "chunk_tokens": [1, 15]}
    assert machine.decode_rate(evidence(point(rows))) is None


def interference(ttft_s=0.5, gap_s=0.01, **meta):
    """A victim decodes 200 tokens while three prompts of 640 tokens (2.7 × 10^11 FLOPs each) are read in."""
    victim = request(0, 0.0, role="victim", slot=None, gap_s=gap_s, output_tokens=200)
    inserted = [
        request(i, 0.3 + i * ttft_s, ttft_s, input_tokens=640, output_tokens=1, role="inserted", slot=None)
        for i in range(3)
    ]
    load = Workload(
        kind="interference", input_tokens=640, output_tokens=1, victim_input_tokens=64,
        victim_output_tokens=200, inserted=3, insert_after_tokens=16,
    )  # fmt: skip
    return point([victim, *inserted], load, **meta)


def test_inserted_prompts_are_held_against_the_machine_and_so_is_the_victim():
    """0.5 s a prompt and 10 ms a token are possible here; 0.05 s and 1 ms are not; without limits that is said."""
    assert validity.verdict(validity.judge_point(evidence(interference()))) == "valid"
    assert machine.limits_unknown(evidence(interference())) is None
    assert machine.prefill_rate(evidence(interference(ttft_s=0.05))).severity == INVALID
    assert machine.decode_rate(evidence(interference(gap_s=0.001))).severity == INVALID
    assert machine.limits_unknown(evidence(interference(), limits={})).severity == NOTE


def served(gap_s, card=CARD, said=None, **options):
    """Evidence of a closed loop with this gap on a server with these options, whose log says a dtype."""
    record = point(closed_rows(2, 20, gap_s=gap_s), session={"log": {"dtype": said}})
    record.meta.spec["server"]["options"] |= options
    return replace(evidence(record), card=card)


def test_weights_that_the_server_quantises_are_not_taken_for_those_of_the_checkpoint():
    """A gap of 4 ms is too short for 0.47 GB of bf16 weights at 100 GB/s; of fp8 weights the size is not known."""
    assert machine.decode_rate(served(0.004)).severity == INVALID
    assert machine.decode_rate(served(0.004, quantization="fp8")) is None
    assert machine.limits_unknown(served(0.004, quantization="fp8")).values["missing"] == "weights"


def test_weights_have_the_dtype_that_the_server_runs_them_in():
    """A float32 checkpoint is read as 16 bits unless the server was told or says otherwise."""
    checkpoint = model_card.from_config({**CARD.config, "torch_dtype": "float32"})
    assert machine.decode_rate(served(0.006, checkpoint, said="bfloat16")) is None
    assert machine.decode_rate(served(0.006, checkpoint)) is None
    assert machine.decode_rate(served(0.006, checkpoint, said="float32")).severity == INVALID
    assert machine.decode_rate(served(0.006, dtype="float32")).severity == INVALID


def test_missing_limits_are_noted():
    """A point that was not held against the machine says so."""
    assert machine.limits_unknown(evidence(healthy())) is None
    found = machine.limits_unknown(evidence(healthy(), limits={}))
    assert (found.severity, found.values["missing"]) == (NOTE, "flops, bytes_per_s")


@pytest.mark.parametrize(("cpu_s", "severity"), [(5.0, None), (8.5, SUSPECT), (9.7, INVALID)])
def test_client_busy(cpu_s, severity):
    """Half a core is fine, 85 % suspect, 97 % invalid."""
    found = client.client_busy(evidence(healthy(client={"cpu_s": cpu_s, "wall_s": 10.0})))
    assert (found.severity if found else None) == severity


@pytest.mark.parametrize(
    ("lag_ms", "gap_s", "severity"),
    [(0.5, 0.01, None), (12.0, 0.3, None), (12.0, 0.1, SUSPECT), (12.0, 0.01, INVALID)],
)
def test_client_late_is_judged_against_the_latency_it_would_be_mistaken_for(lag_ms, gap_s, severity):
    """12 ms late matter where a token takes 10 ms, hardly where it takes 300."""
    record = point(closed_rows(2, 5, gap_s=gap_s, ttft_s=1.0), client={"lag_p99_ms": lag_ms})
    found = client.client_late(evidence(record))
    assert (found.severity if found else None) == severity


def test_sent_late_fires_in_open_loop_only():
    """100 ms behind the schedule against a TTFT of 150 ms."""
    rows = [request(i, i + 0.1, intended_s=float(i)) for i in range(20)]
    late = point(rows, Workload(kind="open", input_tokens=64, output_tokens=16, rate_rps=1, requests=20))
    on_time = point(
        [request(i, float(i)) for i in range(20)],
        Workload(kind="open", input_tokens=64, output_tokens=16, rate_rps=1, requests=20),
    )
    assert client.sent_late(evidence(late)).severity == SUSPECT
    assert client.sent_late(evidence(on_time)) is None
    assert client.sent_late(evidence(point(rows))) is None


def test_preemptions_are_a_note():
    """A fact about the load: the point stays valid."""
    metrics = counters({"num_preemptions": 1}, {"num_preemptions": 8})
    found = server.preempted(evidence(healthy(metrics=metrics)))
    assert (found.severity, found.values["preemptions"]) == (NOTE, 7)
    assert (
        server.preempted(evidence(healthy(metrics=counters({"num_preemptions": 1}, {"num_preemptions": 1}))))
        is None
    )


JIT = [{"kind": "jit", "text": "Triton JIT compilation during inference: kernel", "count": 2}]


def slow_start(**meta):
    rows = closed_rows(2, 20)
    rows[0] = request(0, -1.0, ttft_s=1.0, slot=0)
    rows[1] = request(1, -1.0, ttft_s=1.0, slot=1)
    return point(rows, **meta)


def test_compilation_is_invalid_with_slow_first_requests_and_a_note_without():
    """The log alone may speak of the warm-up; both together convict; a slow first wave alone is suspect."""
    assert server.compiled(evidence(slow_start(log_events=JIT))).severity == INVALID
    assert server.compiled(evidence(healthy(log_events=JIT))).severity == NOTE
    assert server.compiled(evidence(slow_start())).reason == "slow_first_wave"
    assert server.compiled(evidence(healthy())) is None
    assert server.compiled(evidence(healthy(log_events=[{"kind": "warning", "text": "x"}]))) is None


def test_a_compile_after_the_first_wave_is_seen_by_its_time():
    """Closed loops: few requests cannot tell a slow first wave, so the time convicts; where they can, it is suspect."""
    event = {"kind": "jit", "text": "JIT compilation during inference: f", "count": 1, "utc_s": [1001]}
    few = point([request(i, 0.5 * i) for i in range(4)], workload(concurrency=1, requests=4))
    for record, severity in ((few, INVALID), (healthy(), SUSPECT)):
        record.meta.extra["clock_zero"] = 1000.0
        record.meta.log_events = [event]
        found = server.compiled(evidence(record))
        assert (found.reason, found.severity) == ("compiled_within", severity)


def arrivals(**meta):
    """An open loop of 20 requests in 2 seconds."""
    load = Workload(kind="open", input_tokens=64, output_tokens=16, rate_rps=10, requests=20)
    return point([request(i, 0.1 * i, slot=None) for i in range(20)], load, **meta)


@pytest.mark.parametrize("made", [interference, arrivals])
@pytest.mark.parametrize(
    ("seconds", "reason", "severity"),
    [
        ([], "compiled_logged", NOTE),
        ([998, 999], "compiled_logged", NOTE),
        ([999, 1000], "compiled_at_begin", SUSPECT),
        ([1000, 1001], "compiled_within", INVALID),
        ([1002], "compiled_within", INVALID),
        ([1003], "compiled_logged", NOTE),
    ],
)
def test_compilation_counts_by_its_time_where_no_wave_can_tell(made, seconds, reason, severity):
    """Requests run from second 1000.5 to 1002.5; a stamp is a whole second, in which the warm-up may have ended."""
    events = [{"kind": "jit", "text": "JIT compilation during inference: f", "count": 2, "utc_s": seconds}]
    record = made(extra={"clock_zero": 1000.5}, log_events=events)
    found = server.compiled(evidence(record))
    assert (found.reason, found.severity) == (reason, severity)
    for language in texts.LANGUAGES:
        assert "{" not in texts.catalogue(language).text(f"validity.{reason}.cause", found.values)
    (told,) = events
    del told["utc_s"]
    assert server.compiled(evidence(record)).reason == "compiled_logged", "points kept before had no times"


def test_first_ttft_alone_tells_at_concurrency_1():
    """582 ms against 202 ms (a real case): invisible in the whole request, plain in the first token."""
    rows = closed_rows(1, 8, ttft_s=0.202, output_tokens=200)
    rows[0] = request(0, -5.0, ttft_s=0.582, output_tokens=200)
    one = workload(concurrency=1, requests=8, output_tokens=200)
    assert server.compiled(evidence(point(rows, one), limits={})).reason == "slow_first_wave"


@pytest.mark.parametrize(
    ("found", "fires"), [("0.31.0", False), ("0.31.0+cpu", False), ("0.25.1", True), (None, False)]
)
def test_other_version(found, fires):
    """Another release is not what the study names; a local build tag is."""
    reason = server.other_version(evidence(healthy(session={"version": found})))
    assert (reason is not None) == fires


def test_errors_logged_are_noted():
    """An error line in the log is shown, nothing more."""
    record = healthy(log_events=[{"kind": "error", "text": "something broke", "count": 1}])
    assert server.errors_logged(evidence(record)).severity == NOTE
    assert server.errors_logged(evidence(healthy())) is None


def paced(pace):
    """One slot, 60 requests; pace(i) is the time a token takes in the i-th."""
    rng = np.random.default_rng(1)
    rows, at = [], 0.0
    for i in range(60):
        rows.append(request(i, at, gap_s=pace(i) * (1 + 0.03 * rng.standard_normal())))
        at = rows[-1]["end_s"]
    return point(rows, workload(concurrency=1, requests=60))


def test_drifting_fires_on_a_slow_change_and_not_on_noise():
    """30 % slower over the point is a drift; 3 % of noise is none."""
    found = stability.drifting(evidence(paced(lambda i: 0.01 * (1 + 0.3 * i / 60))))
    assert found.severity == SUSPECT
    assert found.values["change"] == pytest.approx(0.27, abs=0.06)
    assert stability.drifting(evidence(paced(lambda i: 0.01))) is None


def test_a_ramp_is_no_drift():
    """Requests that come faster and faster are answered more slowly by design; at a constant rate it is a drift."""
    rows = [request(i, 0.2 * i, gap_s=0.01 * (1 + i / 40), slot=None) for i in range(40)]
    for arrival, judged in (("poisson", True), ("ramp", False), ("trace", False)):
        load = Workload(
            kind="open", input_tokens=64, output_tokens=16, rate_rps=5, requests=40, arrival=arrival
        )
        assert (stability.drifting(evidence(point(rows, load))) is not None) == judged


def rounds(pace, slots=16):
    """A closed loop in rounds: pace(i) is the time a token takes in the i-th round of every slot."""
    rng = np.random.default_rng(2)
    rows, at = [], [0.0] * slots
    for turn in range(len(pace)):
        for slot in range(slots):
            gap = pace[turn] * (1 + 0.02 * rng.standard_normal())
            rows.append(request(len(rows), at[slot], gap_s=gap, slot=slot))
            at[slot] = rows[-1]["end_s"]
    return point(rows, workload(concurrency=slots, requests=len(rows)))


def test_two_rounds_are_no_trend_however_many_requests_they_have():
    """64 requests in two steady rounds that differ by 15 % prove no drift: a round is one observation."""
    assert stability.drifting(evidence(rounds([0.01, 0.01, 0.0115, 0.0115], slots=32))) is None


def test_rounds_that_differ_much_have_not_settled():
    """A third round half as slow as the second is called unsettled, since four rounds show no more."""
    found = stability.drifting(evidence(rounds([0.01, 0.02, 0.01, 0.01])))
    assert (found.reason, found.severity) == ("unsettled", SUSPECT)


def test_a_trend_over_many_rounds_is_a_drift():
    """Ten rounds, each 4 % slower."""
    found = stability.drifting(evidence(rounds([0.01 * 1.04**i for i in range(10)])))
    assert found.reason == "drifting"
    assert stability.drifting(evidence(rounds([0.01] * 10))) is None


def test_bimodal_fires_on_two_states_and_not_on_noise_or_drift():
    """Every fourth request at half speed is two modes; noise and a smooth drift are one."""
    found = stability.bimodal(evidence(paced(lambda i: 0.02 if i % 4 == 0 else 0.01)))
    assert found.values["share_slow"] == pytest.approx(0.25, abs=0.03)
    assert stability.bimodal(evidence(paced(lambda i: 0.01))) is None
    assert stability.bimodal(evidence(paced(lambda i: 0.01 * (1 + i / 60)))) is None


def test_stability_does_not_judge_what_is_uneven_by_design():
    """Hits and misses of a shared prefix are two modes on purpose; preemption has its own reason."""
    rows = paced(lambda i: 0.02 if i % 4 == 0 else 0.01)
    shared = point(rows.requests.to_pylist(), workload(concurrency=1, requests=60, shared_prefix_tokens=32))
    metrics = counters({"num_preemptions": 0}, {"num_preemptions": 3})
    preempted = point(rows.requests.to_pylist(), workload(concurrency=1, requests=60), metrics=metrics)
    assert stability.bimodal(evidence(shared)) is None
    assert stability.bimodal(evidence(preempted)) is None


@pytest.mark.parametrize(
    ("throttled", "severity"),
    [
        ({}, None),
        ({"cpu quota throttled_s": 0.01}, None),
        ({"cpu quota throttled_s": 2.0}, SUSPECT),
        ({"gpu-0 power cap": 1.0}, NOTE),
        ({"gpu-0 hardware thermal slowdown": 1.0}, SUSPECT),
    ],
)
def test_slowed_down(throttled, severity):
    """Heat and a spent CPU quota are faults; a GPU at its power cap is how it runs."""
    record = healthy(machine={"id": "m1", "during": {"wall_s": 10.0, "throttled": throttled}})
    found = machine.slowed_down(evidence(record))
    assert (found.severity if found else None) == severity


@pytest.mark.parametrize(("foreign", "severity"), [(0.1, None), (0.5, SUSPECT), (1.2, INVALID)])
def test_shared_machine(foreign, severity):
    """Of two CPUs a tenth of one is nothing, half of one suspect, more than one invalid."""
    during = {
        "wall_s": 10.0,
        "foreign_cpus": foreign,
        "steal_cpus": 0.0,
        "foreign_top": [["cc1plus", foreign]],
    }
    record = healthy(machine={"id": "m1", "threads_usable": 2, "during": during})
    found = machine.shared_machine(evidence(record))
    assert (found.severity if found else None) == severity


def test_a_shared_machine_is_told_by_who_took_the_time():
    """Time that the hypervisor gave to others is no process's; nobody in particular is no question mark."""
    during = {"wall_s": 10.0, "foreign_cpus": 0.25, "steal_cpus": 0.5, "foreign_top": []}
    record = healthy(machine={"id": "m1", "threads_usable": 2, "during": during})
    found = machine.shared_machine(evidence(record))
    assert found.values == {"cpus": 0.75, "of": 2.0, "here": 0.25, "who": "–", "stolen": 0.5}


@pytest.mark.parametrize(
    ("command", "judged"),
    [(["/usr/bin/docker", "run", "vllm"], False), (["numactl", "-N", "0", "vllm"], True)],
)
def test_a_containers_own_work_is_not_taken_for_somebody_elses(command, judged):
    """What docker runs is no child of ours; what a wrapper starts is."""
    about = {"id": "m1", "threads_usable": 2, "during": {"foreign_cpus": 1.8, "steal_cpus": 0.0}}
    record = healthy(machine=about, start={"engine": {"command": command}})
    assert (machine.shared_machine(evidence(record)) is not None) == judged


def test_an_attached_servers_own_work_is_not_taken_for_somebody_elses():
    """A server that servelab did not start looks foreign; that is no fault of the measurement."""
    during = {"wall_s": 10.0, "foreign_cpus": 1.8, "steal_cpus": 0.0}
    about = {"id": "m1", "threads_usable": 2, "during": during}
    assert machine.shared_machine(evidence(healthy(machine=about, session={"boot": "attached"}))) is None
    assert machine.shared_machine(evidence(healthy(machine=about))) is not None


def test_other_machine_is_the_one_that_most_points_are_not_from():
    """One point of three from elsewhere."""
    rows = summary.frame(
        [summary.row(healthy(machine={"id": m}), "load_sweep", "p", None) for m in ("a", "a", "b")]
    )
    assert validity.main_machine(rows) == "a"
    assert machine.other_machine(evidence(healthy(machine={"id": "b"}), main="a")).severity == SUSPECT
    assert machine.other_machine(evidence(healthy(machine={"id": "a"}), main="a")) is None


def test_judge_fills_verdict_and_reasons_for_every_row():
    """Three points: healthy, trapped, failed."""
    records = {"a": healthy(), "b": trap(), "c": point([failed(0, 0.0)], status="failed", cause="all_failed")}
    rows = summary.frame([summary.row(r, "load_sweep", path, None) for path, r in records.items()])
    study = Study(limits=dict(LIMITS))
    judged = validity.judge(rows, lambda row: records[row["path"]], {"tiny": CARD}, study, {})
    assert judged["verdict"].tolist() == ["valid", "invalid", "invalid"]
    assert validity.from_json(judged["reasons"][2])[0].reason == "point_failed"
    assert rows["verdict"].isna().all()


def test_an_engines_limits_of_today_stand_over_those_recorded_and_under_the_studys():
    """A limit corrected in the engine's config counts for points measured before; the study's own word is the last."""
    record = healthy(limits={**LIMITS, "flops": 1.0})
    rows = summary.frame([summary.row(record, "load_sweep", "p", None)])
    found = [
        validity.judge(rows, lambda row: record, {"tiny": CARD}, Study(limits=study), engine)["verdict"][0]
        for engine, study in (({}, {}), ({"flops": 1e12}, {}), ({"flops": 1e12}, {"flops": 1.0}))
    ]
    assert found == ["invalid", "valid", "invalid"]


def test_limits_from_the_config_win_and_grow_with_the_devices():
    """The config's word stands over the measured one; four GPUs have four times the rate."""
    row = {"options": json.dumps({"tensor-parallel-size": 4})}
    known = validity.limits_of(row, {"flops": 1.0, "bytes_per_s": 2.0, "source": "measured"}, {"flops": 10.0})
    assert known == {"flops": 40.0, "bytes_per_s": 8.0}


@pytest.mark.parametrize("language", texts.LANGUAGES)
@pytest.mark.parametrize("reason", validity.REASONS)
def test_every_reason_has_cause_and_remedy_in_every_language(reason, language):
    """A reason without words would be a number without a meaning."""
    catalogue = texts.catalogue(language)
    for part in ("cause", "remedy"):
        assert catalogue.texts[f"validity.{reason}.{part}"]


@pytest.mark.parametrize("language", texts.LANGUAGES)
def test_reasons_fill_their_texts(language):
    """The values of a reason are those that its sentence asks for."""
    metrics = counters(
        {"prefix_cache_queries": 0, "prefix_cache_hits": 0, "num_preemptions": 0},
        {"prefix_cache_queries": 2560, "prefix_cache_hits": 1900, "num_preemptions": 3},
    )
    during = {"wall_s": 10.0, "foreign_cpus": 1.5, "steal_cpus": 0.0, "throttled": {"gpu-0 power cap": 1.0}}
    everything = point(
        [*closed_rows(2, 3, ttft_s=0.001, gap_s=0.0001), failed(7, 0.1, cause="output_tokens")],
        workload(same_prompt=True),
        metrics=metrics,
        machine={"id": "b", "threads_usable": 2, "during": during},
        session={"version": "0.25.1"},
        client={"cpu_s": 9.9, "wall_s": 10.0, "lag_p99_ms": 50.0},
        log_events=[*JIT, {"kind": "error", "text": "x"}],
    )
    found = validity.judge_point(evidence(everything))
    assert len(found) >= 14
    for reason in found:
        filled = texts.catalogue(language).text(f"validity.{reason.reason}.cause", reason.values)
        assert "{" not in filled
