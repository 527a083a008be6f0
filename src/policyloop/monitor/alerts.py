"""Alerts: what to watch, when it is too much, and what to do. One table: rule files, their tests, runbooks and docs are written from it.

An alert carries two series of its own: one on which it must fire and one on which it must not; `scripts/monitoring.py` makes of them the
unit tests that `promtool test rules` runs. Guards of a training run (`guards.py`) become alerts by themselves.

Example:
    >>> ALERTS["GpuTemperatureHigh"].expr
    'DCGM_FI_DEV_GPU_TEMP > 85'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from policyloop.monitor.guards import GUARDS
from policyloop.monitor.metrics import prometheus_name

Severity = Literal["info", "warning", "critical"]
Series = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Alert:
    """`expr` held for `hold` raises it. `fires` and `quiet`: series (selector -> promtool values, one a minute) that must and must not.

    `means` and `do`: the two sentences of the runbook.
    """

    expr: str
    hold: str
    severity: Severity
    means: str
    do: str
    fires: Series = field(default_factory=dict)
    quiet: Series = field(default_factory=dict)
    requirement: str = ""


def _steady(selector: str, high: float, low: float) -> tuple[Series, Series]:
    return {selector: f"{high:g}x90"}, {selector: f"{low:g}x90"}


def _gauge(
    metric: str, sign: str, limit: float, hold: str, severity: Severity, means: str, do: str, requirement: str = ""
) -> Alert:
    """A gauge beyond a limit: the firing series lies a tenth beyond, the quiet one a tenth inside."""
    margin = (abs(limit) / 10 or 1.0) * (1 if sign == ">" else -1)
    beyond, inside = limit + margin, limit - margin
    fires, quiet = _steady(metric, beyond, inside)
    return Alert(f"{metric} {sign} {limit:g}", hold, severity, means, do, fires, quiet, requirement)


def _p99(histogram: str, limit_s: float, means: str, do: str, requirement: str, where: str = "") -> Alert:
    """The 99th percentile over five minutes. Edges lie at the limit, so the estimate is exact there."""
    labels = f'{{{where}le="%s"}}' if where else '{le="%s"}'
    bucket = f"{histogram}_bucket"
    slow = {bucket + labels % "0.005": "0x90", bucket + labels % f"{limit_s:g}": "0+60x90", bucket + labels % "+Inf": "0+100x90"}
    fast = {bucket + labels % "0.005": "0x90", bucket + labels % f"{limit_s:g}": "0+100x90", bucket + labels % "+Inf": "0+100x90"}
    # the buckets in between are there too: without them the quantile would be read off a line from the first edge
    slow[bucket + labels % "60"] = fast[bucket + labels % "60"] = "0+100x90"
    selected = f"{bucket}{{{where.rstrip(', ')}}}" if where else bucket
    expr = f"histogram_quantile(0.99, sum by (le) (rate({selected}[5m]))) > {limit_s:g}"
    return Alert(expr, "5m", "warning", means, do, slow, fast, requirement)


ALERTS: dict[str, Alert] = {
    # --- machine
    "GpuTemperatureHigh": _gauge(
        "DCGM_FI_DEV_GPU_TEMP",
        ">",
        85,
        "5m",
        "critical",
        "A GPU is hotter than 85 °C and will slow down or stop.",
        "Check fans and inlet air; move the job off the node; nvidia-smi -q -d TEMPERATURE names the slow-down threshold.",
        "S0-71",
    ),
    "GpuUtilisationLow": Alert(
        "avg_over_time(DCGM_FI_DEV_GPU_UTIL[30m]) < 80",
        "30m",
        "info",
        "A GPU idles more than a fifth of the time: the job is paid for and not used.",
        "Raise training.micro_batch_tokens or training.prompts_per_step; look at time/* for what the step waits for.",
        *_steady('DCGM_FI_DEV_GPU_UTIL{gpu="0"}', 40, 90),
        requirement="S1-68",
    ),
    "GpuMemoryHigh": Alert(
        "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.95",
        "5m",
        "warning",
        "A GPU's memory is nearly full: the next longer batch may fail.",
        "Lower training.micro_batch_tokens (it halves by itself when memory runs out) or the engine's share.",
        {'DCGM_FI_DEV_FB_USED{gpu="0"}': "78000x90", 'DCGM_FI_DEV_FB_FREE{gpu="0"}': "2000x90"},
        {'DCGM_FI_DEV_FB_USED{gpu="0"}': "70000x90", 'DCGM_FI_DEV_FB_FREE{gpu="0"}': "10000x90"},
        "S1-61",
    ),
    "HostMemoryHigh": Alert(
        "policyloop_host_memory_used_bytes / policyloop_host_memory_total_bytes > 0.95",
        "5m",
        "warning",
        "The machine's memory is nearly full; the kernel may end a process.",
        "Lower training.micro_batch_tokens or the number of processes on this machine.",
        {"policyloop_host_memory_used_bytes": "98x90", "policyloop_host_memory_total_bytes": "100x90"},
        {"policyloop_host_memory_used_bytes": "60x90", "policyloop_host_memory_total_bytes": "100x90"},
        "S0-67",
    ),
    # --- training
    "UpdateSuccessLow": Alert(
        'sum(rate(policyloop_train_updates_total{reason="ok"}[1h])) / sum(rate(policyloop_train_updates_total[1h])) < 0.999',
        "10m",
        "warning",
        "Of a thousand updates more than one was skipped or not finite.",
        "policyloop doctor RUN names the rows; lower training.lr, look at bad/ in the run folder.",
        {'policyloop_train_updates_total{reason="ok"}': "0+90x120", 'policyloop_train_updates_total{reason="nan"}': "0+10x120"},
        {'policyloop_train_updates_total{reason="ok"}': "0+100x120", 'policyloop_train_updates_total{reason="nan"}': "0x120"},
    ),
    "UpdateSlow": Alert(
        "histogram_quantile(0.99, sum by (le) (rate(policyloop_train_update_duration_seconds_bucket[30m])))"
        " > 4 * histogram_quantile(0.5, sum by (le) (rate(policyloop_train_update_duration_seconds_bucket[30m])))",
        "30m",
        "info",
        "Some updates take four times the usual: memory pressure, a busy neighbour or one very long completion.",
        "Look at micro_batch_tokens and length/max. (50 ms an update is the time of publishing weights, not of a step of a language model.)",
        {
            'policyloop_train_update_duration_seconds_bucket{le="1"}': "0+90x120",
            'policyloop_train_update_duration_seconds_bucket{le="30"}': "0+90x120",
            'policyloop_train_update_duration_seconds_bucket{le="60"}': "0+100x120",
            'policyloop_train_update_duration_seconds_bucket{le="+Inf"}': "0+100x120",
        },
        {
            'policyloop_train_update_duration_seconds_bucket{le="0.75"}': "0x120",
            'policyloop_train_update_duration_seconds_bucket{le="1"}': "0+100x120",
            'policyloop_train_update_duration_seconds_bucket{le="+Inf"}': "0+100x120",
        },
        "S3-56",
    ),
    "WeightPublishSlow": _p99(
        "policyloop_train_publish_duration_seconds",
        0.05,
        "Handing new weights to the engine takes more than 50 ms at the 99th percentile.",
        "Publish the adapter instead of full weights; put engine and trainer on one machine. Raise the limit if the model is large.",
        "S3-56",
    ),
    "CheckpointOld": Alert(
        "time() - policyloop_train_last_checkpoint_timestamp_seconds > 3600",
        "5m",
        "warning",
        "The last checkpoint is older than an hour: a crash now loses that hour.",
        "Lower training.save_steps; look for a full disk or an unreachable second destination in events.jsonl.",
        {"policyloop_train_last_checkpoint_timestamp_seconds": "0x120"},
        {"policyloop_train_last_checkpoint_timestamp_seconds": "0+60x120"},
    ),
    "TrainingStalled": Alert(
        "time() - policyloop_train_last_step_timestamp_seconds > 1800",
        "5m",
        "critical",
        "No step has ended for half an hour.",
        "Look at the log of rank 0 for the stage; a hanging reward is counted in reward/late, an engine in its heartbeat.",
        {"policyloop_train_last_step_timestamp_seconds": "0x120"},
        {"policyloop_train_last_step_timestamp_seconds": "0+60x120"},
    ),
    # --- serving
    "PredictLatencyHigh": _p99(
        "policyloop_request_duration_seconds",
        0.5,
        "One request in a hundred to /predict takes more than 500 ms.",
        "Add replicas, shorten max_new_tokens, look at requests_waiting; docs/serving.md has the capacity formula.",
        "S0-57",
        'route="/predict", ',
    ),
    "RewardLatencyHigh": _p99(
        "policyloop_request_duration_seconds",
        0.2,
        "One call in a hundred to the reward service takes more than 200 ms.",
        "Add replicas of the reward service or lower its batch wait; training goes on, late rewards are unscored and counted.",
        "S3-58",
        'route="/score", ',
    ),
    "ErrorsHigh": Alert(
        'sum(rate(policyloop_requests_total{code=~"5.."}[5m])) / sum(rate(policyloop_requests_total[5m])) > 0.01',
        "5m",
        "critical",
        "More than one request in a hundred ends in a server error.",
        "policyloop models rollback NAME goes back at once; then read the log by request id.",
        {'policyloop_requests_total{code="500"}': "0+5x90", 'policyloop_requests_total{code="200"}': "0+95x90"},
        {'policyloop_requests_total{code="500"}': "0x90", 'policyloop_requests_total{code="200"}': "0+100x90"},
    ),
    "QueueLong": Alert(
        "policyloop_requests_waiting > 4 * clamp_min(policyloop_requests_running, 1)",
        "5m",
        "warning",
        "Four times as many answers wait as are being generated; refusals (429) come next.",
        "Add replicas; the autoscaler reads the same two figures.",
        {"policyloop_requests_waiting": "100x90", "policyloop_requests_running": "16x90"},
        {"policyloop_requests_waiting": "10x90", "policyloop_requests_running": "16x90"},
    ),
    "GenerationStuck": _gauge(
        "policyloop_heartbeat_age_seconds",
        ">",
        30,
        "1m",
        "critical",
        "A server's generation loop has not moved for half a minute.",
        "Liveness restarts the pod; if it comes back at once, roll back the version it serves.",
    ),
    "VersionSkew": Alert(
        'count(count by (version) (rate(policyloop_generated_tokens_total{version!=""}[5m]) > 0)) > 2',
        "5m",
        "warning",
        "More than two versions answer: a canary has two, a third was left behind by a failed roll-out.",
        "policyloop models show NAME says which should serve; restart the replica that serves another.",
        {f'policyloop_generated_tokens_total{{version="m@{n}"}}': "0+10x90" for n in (1, 2, 3)},
        {f'policyloop_generated_tokens_total{{version="m@{n}"}}': "0+10x90" for n in (1, 2)},
    ),
    "TokenBurn": Alert(
        "sum(rate(policyloop_generated_tokens_total[10m])) / sum(rate(policyloop_requests_total[10m]))"
        " > 2 * sum(rate(policyloop_generated_tokens_total[6h] offset 1h)) / sum(rate(policyloop_requests_total[6h] offset 1h))",
        "10m",
        "warning",
        "Answers are twice as long as in the hours before: a version that rambles, or somebody who makes it ramble.",
        "Compare versions by length (policyloop compare), look for one key in the journal.",
        {
            "policyloop_generated_tokens_total": "0+1000x420 430000+10000x60",
            'policyloop_requests_total{code="200"}': "0+10x480",
        },
        {"policyloop_generated_tokens_total": "0+1000x480", 'policyloop_requests_total{code="200"}': "0+10x480"},
    ),
    "DeadMan": Alert(
        "vector(1)",
        "0m",
        "info",
        "Always firing: when it stops arriving, the alerting itself is broken.",
        "Point a watchdog outside the cluster at it; silence means Prometheus or Alertmanager is down.",
        {"up": "1x90"},
        {},
    ),
}


def rules(alerts: Mapping[str, Alert]) -> dict[str, Any]:
    """The rule file: one group, thresholds in the expressions, runbook as an address inside the docs."""
    return {
        "groups": [
            {
                "name": "policyloop",
                "rules": [
                    {
                        "alert": name,
                        "expr": alert.expr,
                        "for": alert.hold,
                        "labels": {"severity": alert.severity},
                        "annotations": {"summary": alert.means, "action": alert.do, "runbook": f"docs/alerts.md#{name.lower()}"},
                    }
                    for name, alert in alerts.items()
                ],
            }
        ]
    }


def rule_tests(alerts: Mapping[str, Alert], file: str) -> dict[str, Any]:
    """promtool's unit tests: each alert on the series on which it must fire, and on those on which it must not."""
    tests = []
    for name, alert in alerts.items():
        long = any(window in alert.expr for window in ("[1h]", "[30m]", "time()"))
        at = "480m" if "[6h]" in alert.expr else "85m" if long else "25m"  # long enough for window and hold, no longer
        for series, firing in ((alert.fires, True), (alert.quiet, False)):
            if not series:
                continue
            tests.append(
                {
                    "interval": "1m",
                    "name": f"{name} {'fires' if firing else 'stays quiet'}",
                    "input_series": [{"series": s, "values": v} for s, v in series.items()],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) > bool 0',
                            "eval_time": at,
                            "exp_samples": [{"labels": "{}", "value": 1}],
                        }
                    ]
                    if firing
                    else [
                        {
                            "expr": f'absent(ALERTS{{alertname="{name}"}}) * 1',
                            "eval_time": at,
                            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}],
                        }
                    ],
                }
            )
    return {"rule_files": [file], "evaluation_interval": "1m", "tests": tests}


def guard_alerts(thresholds: Any) -> dict[str, Alert]:
    """Every guard of a run as an alert on its /metrics, with the run's own thresholds (`training.health`)."""
    made = {}
    for name, guard in GUARDS.items():
        limit = getattr(thresholds, name)
        if limit is None:  # switched off
            continue
        title = "Train" + "".join(word.capitalize() for word in name.split("_"))
        severity: Severity = "critical" if guard.severity == "alarm" else "warning"
        sign = ">" if guard.beyond == "above" else "<"
        means = f"`{guard.metric}` of a training run is {guard.beyond} {limit:g}."
        made[title] = _gauge(prometheus_name(guard.metric), sign, limit, "0m", severity, means, f"{guard.means}; {guard.change}")
    return made
