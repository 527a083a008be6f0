"""Every metric: name -> kind, unit, help, labels. metrics.jsonl, /metrics, docs, guards and dashboards read these tables and no other.

Key `a/b` in metrics.jsonl is `policyloop_train_a_b` for Prometheus. A `*` stands for a name from the config (a reward, a filter).

Example:
    >>> describe("grad_norm").unit
    'norm'
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()


def _gauge(unit: str, help: str) -> Metric:
    return Metric("gauge", unit, help)


METRICS: dict[str, Metric] = {
    "step": Metric("counter", "steps", "rollouts trained on so far"),
    "epoch": _gauge("epochs", "epoch of the first prompt of this step"),
    "policy_version_lag": _gauge(
        "versions", "versions between the sampler and the weights that were updated; null where answers are replayed: not known"
    ),
    # rewards and groups
    "reward/mean": _gauge("reward", "mean shaped reward of scored completions"),
    "reward/std": _gauge("reward", "its standard deviation"),
    "reward/min": _gauge("reward", "smallest"),
    "reward/max": _gauge("reward", "largest"),
    "reward/within_group_std": _gauge("reward", "mean over groups of the standard deviation inside the group"),
    "reward/unscored": _gauge("completions", "completions no reward could score (never counted as 0)"),
    "reward/unshaped_mean": _gauge("reward", "mean composed reward before range control and length terms"),
    "reward/out_of_range_frac": _gauge("ratio", "share of composed rewards outside [low, high] of the range control"),
    "reward/part/*": _gauge("reward", "mean raw value of one reward"),
    "reward/part_min/*": _gauge("reward", "its smallest raw value"),
    "reward/part_max/*": _gauge("reward", "its largest raw value"),
    "reward/unscored/*": _gauge("completions", "completions this reward could not score"),
    "reward/share/*": _gauge("ratio", "its weighted share of the variance of the reward"),
    "reward/length_corr/*": _gauge("correlation", "its correlation with length"),
    "reward/failed/*": _gauge("completions", "completions on which this reward failed"),
    "reward/flipped/*": _gauge(
        "comparisons", "comparisons whose verdict flipped with the order of the answers (counted as ties)"
    ),
    "reward/grader_stopped": _gauge(
        "judgements", "judgements of the symbolic grader stopped in this step for time or memory (they count as wrong)"
    ),
    "reward/late/*": _gauge("completions", "completions on which this reward ran out of time"),
    "metric/mean": _gauge("metric", "mean raw outcome before any shaping (accuracy of the sampled answers)"),
    "allocation/*": _gauge(
        "allocation", "pass rates so far: seen, mean, hard, medium, easy, effective prompts; completions saved"
    ),
    "groups/count": _gauge("groups", "prompts in this step"),
    "groups/size_mean": _gauge("completions", "mean group size"),
    "groups/signal_frac": _gauge("ratio", "share of groups whose rewards differ: only these teach a group-relative algorithm"),
    "groups/zero_std_frac": _gauge("ratio", "share of groups whose rewards are all equal"),
    "groups/all_correct_frac": _gauge("ratio", "share of groups with every answer right"),
    "groups/all_wrong_frac": _gauge("ratio", "share of groups with every answer wrong"),
    "groups/singleton_frac": _gauge("ratio", "share of groups left with fewer than two scored answers"),
    # length and tokens
    "length/mean": _gauge("tokens", "mean completion length"),
    "length/p50": _gauge("tokens", "median completion length"),
    "length/p95": _gauge("tokens", "95th percentile of completion length"),
    "length/max": _gauge("tokens", "longest completion"),
    "length/truncated_frac": _gauge("ratio", "share of completions cut off by max_new_tokens"),
    "length/empty_frac": _gauge("ratio", "share of completions without a token"),
    "length/correct": _gauge("tokens", "mean length of right answers"),
    "length/wrong": _gauge("tokens", "mean length of wrong answers"),
    "tokens/generated": _gauge("tokens", "tokens sampled in this step"),
    "tokens/trained": _gauge("tokens", "tokens that went through the update"),
    "tokens/ratio": _gauge("ratio", "trained / generated"),
    "token_efficiency": _gauge("reward per 1000 tokens", "1000 x sum of rewards / sum of lengths"),
    "correct_per_1k_tokens": _gauge("answers per 1000 tokens", "right answers per 1000 sampled tokens"),
    # the update
    "loss/*": _gauge("loss", "one term of the loss; the policy term is near 0 by construction and says nothing about learning"),
    "ratio/mean": _gauge("ratio", "new / old probability"),
    "ratio/min": _gauge("ratio", "smallest"),
    "ratio/max": _gauge("ratio", "largest"),
    "ratio/std": _gauge("ratio", "standard deviation"),
    "logratio_abs_max": _gauge("nats", "largest |log ratio|"),
    "clip/low": _gauge("ratio", "tokens clipped below (negative advantage)"),
    "clip/high": _gauge("ratio", "tokens clipped above (positive advantage)"),
    "clip/dual": _gauge("ratio", "tokens on the dual clip"),
    "approx_kl/k1": _gauge("nats", "old - new log-probability, mean over tokens (can be negative)"),
    "approx_kl/k3": _gauge("nats", "KL estimate between old and new policy, never negative"),
    "kl_ref/*": _gauge(
        "nats", "KL estimate against the reference: k1, k3 and per_token per token, per_sequence summed over a completion"
    ),
    "entropy": _gauge("nats per token", "mean token entropy of the policy at the sampling temperature"),
    "adv/mean": _gauge("advantage", "mean over tokens"),
    "adv/std": _gauge("advantage", "standard deviation over tokens"),
    "adv/min": _gauge("advantage", "smallest"),
    "adv/max": _gauge("advantage", "largest"),
    "adv/frac_zero": _gauge("ratio", "tokens without advantage"),
    "dynamic/kept_frac": _gauge("ratio", "dynamic sampling: share of sampled groups whose raw outcomes differ"),
    "dynamic/batches": _gauge("batches", "batches sampled to fill the step"),
    "dynamic/all_right": _gauge("groups", "groups sampled and dropped because every answer was right"),
    "dynamic/all_wrong": _gauge("groups", "groups sampled and dropped because every answer was wrong"),
    "dynamic/surplus": _gauge("groups", "usable groups beyond the step's size, discarded"),
    "value/mean": _gauge("value", "the critic's value of the state before a token, mean over tokens"),
    "value/min": _gauge("value", "smallest"),
    "value/max": _gauge("value", "largest"),
    "value/error": _gauge("squared error", "mean (value - return)² before the critic learned from this rollout"),
    "value/explained_variance": _gauge("ratio", "1 - var(return - value) / var(return): 1 is perfect, 0 no better than the mean"),
    "value/clip_frac": _gauge("ratio", "tokens whose new value is beyond the value clip"),
    "value/grad_norm": _gauge("norm", "the critic's gradient norm before clipping"),
    "returns/mean": _gauge("return", "what the critic learns to predict, mean over tokens"),
    "returns/std": _gauge("return", "its standard deviation"),
    "number/*": _gauge("number", "a number of the algorithm that a schedule or a controller moved, by its path"),
    "gfpo/*": _gauge("filter", "what the filter kept: k, lengths and rewards of retained and rejected, retained_zero_std_frac"),
    "is/*": _gauge("weight", "importance weights trainer / engine"),
    "mismatch/*": _gauge("nats", "difference between trainer and engine log-probs of the same tokens"),
    "sft/*": _gauge("sft", "supervised fine-tuning: loss, perplexity, token accuracy"),
    "pairs/*": _gauge("pairs", "pairs of this step: count, those with an empty side (left out), mean tokens of either side"),
    "rewards/chosen": _gauge("reward", "mean (implicit) reward of the chosen sides"),
    "rewards/rejected": _gauge("reward", "mean (implicit) reward of the rejected sides"),
    "rewards/margin": _gauge("reward", "mean difference of the two"),
    "rewards/accuracy": _gauge("ratio", "share of pairs whose chosen side is ahead"),
    "rewards/std": _gauge("reward", "standard deviation of a reward model's scores"),
    "logps/*": _gauge(
        "nats per token", "log-probability of a side; chosen_drift: of the chosen side against the reference, per answer"
    ),
    "grad_norm": _gauge("norm", "gradient norm before clipping"),
    "lr": _gauge("rate", "learning rate of the last update"),
    "micro_batch_tokens": _gauge("tokens", "token budget of one forward (halved when memory ran out)"),
    "update/ok": _gauge("updates", "optimizer steps taken in this step"),
    "update/skipped": _gauge("updates", "optimizer steps without any trainable row"),
    "update/frozen": _gauge("updates", "steps of the critic alone, the policy being frozen (model.critic.warmup_steps)"),
    "update/early_stop": _gauge("rollouts", "1 where rl_strategy.target_kl ended the updates on this rollout early"),
    "update/nan": _gauge("updates", "optimizer steps refused because loss or gradient was not finite"),
    # held-out
    "eval/accuracy": _gauge("ratio", "held-out accuracy"),
    "eval/accuracy_low": _gauge("ratio", "lower end of its 95 % interval"),
    "eval/accuracy_high": _gauge("ratio", "upper end of its 95 % interval"),
    "eval/*": _gauge("evaluation", "other figures of the held-out evaluation"),
    # health: what a step means given those before it; read by the guards
    "health/update_success": _gauge("ratio", "updates that were finite / updates tried, since the start of the run"),
    "health/grad_norm_spike": _gauge("ratio", "gradient norm / median of up to 20 steps before it"),
    "health/clip_share": _gauge("ratio", "clip/low + clip/high"),
    "health/entropy_ratio": _gauge("ratio", "entropy, mean of the last five steps / mean of the first five"),
    "health/length_ratio": _gauge("ratio", "completion length, mean of the last five steps / mean of the first five"),
    "health/reward_drift": _gauge(
        "std", "rise of the reward minus rise of the raw outcome since the first five steps, each in its own standard deviations"
    ),
    "health/reward_dominance": _gauge("ratio", "largest share of one reward among the shares of all"),
    "health/length_reward": _gauge("correlation", "absolute correlation of the rewards with length, weighted by reward/share"),
    "health/unscored_share": _gauge("ratio", "completions without a reward / all"),
    "health/below_start": _gauge("metric", "worse end of the held-out interval before training minus the held-out result"),
    "health/falls_in_row": _gauge("evaluations", "held-out evaluations in a row, each worse than the one before"),
    # time: the only keys besides sys/* that differ between two equal runs
    "time/*": _gauge("seconds", "wall time of a part of the step; `*_per_s` are rates"),
    "sys/*": _gauge("system", "memory and threads of the process"),
}


def describe(key: str) -> Metric | None:
    """The row of `key`, through a `*` row if need be; None = unknown, which a test forbids."""
    if key in METRICS:
        return METRICS[key]
    rows = [name for name in METRICS if "*" in name and fnmatch.fnmatchcase(key, name)]
    return METRICS[max(rows, key=len)] if rows else None


def prometheus_name(key: str) -> str:
    """`a/b` -> `policyloop_train_a_b`."""
    return "policyloop_train_" + "".join(c if c.isalnum() else "_" for c in key)


# --- services: names as they stand behind `policyloop_` at /metrics --------------------------------------------------------------

LATENCY_EDGES_S = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)  # 0.2 and 0.5: the usual promises

SERVING: dict[str, Metric] = {
    "requests_total": Metric("counter", "requests", "answered requests", ("route", "code", "version")),
    "requests_running": _gauge("answers", "answers being generated now"),
    "requests_waiting": _gauge("answers", "answers waiting for a place in the batch"),
    "requests_refused_total": Metric("counter", "requests", "requests refused before any work was done", ("reason",)),
    "answers_total": Metric(
        "counter", "answers", "finished answers by what ended them, those of clients that left included", ("reason",)
    ),
    "request_duration_seconds": Metric(
        "histogram", "seconds", "from the request's arrival to the last byte of its answer", ("route",)
    ),
    "time_to_first_token_seconds": Metric("histogram", "seconds", "from the request's arrival to its first text", ("route",)),
    "time_per_output_token_seconds": Metric(
        "histogram", "seconds", "mean time between the tokens of one answer after its first", ("route",)
    ),
    "prompt_tokens_total": Metric("counter", "tokens", "prompt tokens of answered requests", ("version",)),
    "generated_tokens_total": Metric("counter", "tokens", "generated tokens, those of clients that left included", ("version",)),
    "prefix_tokens_total": Metric("counter", "tokens", "prompt tokens whose keys and values were found in the prefix cache"),
    "kv_cache_usage_ratio": _gauge("ratio", "share of the token budget that is taken"),
    "heartbeat_age_seconds": _gauge("seconds", "since the generation loop last moved"),
    "weight_swaps_total": Metric("counter", "swaps", "changes of weights while serving", ("version",)),
}

REWARDING: dict[str, Metric] = {
    "requests_total": SERVING["requests_total"],
    "request_duration_seconds": SERVING["request_duration_seconds"],
    "rows_total": Metric("counter", "rows", "completions scored by the reward service"),
    "rows_unscored_total": Metric("counter", "rows", "of them, those that could not be scored"),
    "rows_waiting": _gauge("rows", "completions waiting to be scored"),
}

GATEWAY: dict[str, Metric] = {
    "gateway_requests_total": Metric(
        "counter", "requests", "answered requests by model (route), status and version", ("route", "code", "version")
    ),
    "gateway_request_duration_seconds": Metric(
        "histogram", "seconds", "from the request's arrival to the last byte of its answer", ("route", "arm")
    ),
    "gateway_time_to_first_byte_seconds": Metric(
        "histogram", "seconds", "from the request's arrival to the first byte of its answer", ("route", "arm")
    ),
    "gateway_tokens_total": Metric("counter", "tokens", "generated tokens, as the backends report them", ("route", "version")),
    "gateway_errors_total": Metric(
        "counter",
        "attempts",
        "attempts at a backend that failed, those a retry repaired included",
        ("route", "version", "reason"),
    ),
    "gateway_retries_total": Metric("counter", "attempts", "second and third attempts", ("route", "reason")),
    "gateway_refused_total": Metric("counter", "requests", "requests refused before any backend was asked", ("route", "reason")),
    "gateway_broken_streams_total": Metric(
        "counter", "streams", "streams that ended in an error event instead of [DONE]", ("route", "version")
    ),
    "gateway_requests_running": Metric("gauge", "requests", "requests at a backend now", ("backend",)),
    "gateway_backend_up": Metric("gauge", "yes or no", "1 = may get requests now", ("backend",)),
    "gateway_ejections_total": Metric("counter", "ejections", "times a backend was taken out as an outlier", ("backend",)),
    "gateway_share_ratio": Metric("gauge", "ratio", "share of sessions this version is meant to get now", ("route", "version")),
    "gateway_release_state": Metric("gauge", "yes or no", "1 for the state the release is in", ("route", "stage")),
    "gateway_evidence": Metric(
        "gauge", "e-value / bound", "evidence that the candidate is worse, against its bound: 1 rolls back", ("route", "reason")
    ),
    "gateway_failures": Metric("gauge", "updates", "failed updates in a row", ("route",)),
    "gateway_log_age_seconds": Metric("gauge", "seconds", "since the model's log was last read", ("route",)),
    "gateway_shadow_total": Metric("counter", "requests", "copies sent to a candidate in shadow", ("route", "code")),
    "gateway_webhooks_total": Metric("counter", "calls", "webhooks by status", ("code",)),
    "heartbeat_age_seconds": _gauge("seconds", "since the controller last looked"),
}


# --- a training run's own /metrics: what a gauge of the last step cannot say -------------------------------------------------------

RUN: dict[str, Metric] = {
    "train_updates_total": Metric("counter", "updates", "optimizer steps by what came of them (ok, skipped, nan)", ("reason",)),
    "train_update_duration_seconds": Metric("histogram", "seconds", "one whole update: forward, backward, step"),
    "train_rollout_duration_seconds": Metric("histogram", "seconds", "sampling of one step"),
    "train_publish_duration_seconds": Metric("histogram", "seconds", "weights to the engine: sent, echoed, visible"),
    "train_reward_duration_seconds": Metric(
        "histogram", "seconds", "scoring of one step's completions, what overlapped left out"
    ),
    "train_last_step_timestamp_seconds": _gauge("seconds", "when the last step ended (Unix time)"),
    "train_last_checkpoint_timestamp_seconds": _gauge("seconds", "when the last checkpoint was complete (Unix time)"),
}

HOST: dict[str, Metric] = {
    "host_cpu_usage_ratio": _gauge("ratio", "processor use of the machine, all cores together"),
    "host_memory_used_bytes": _gauge("bytes", "memory of the machine that is not available"),
    "host_memory_total_bytes": _gauge("bytes", "memory of the machine"),
    "host_network_receive_bytes_total": Metric("counter", "bytes", "received by the machine"),
    "host_network_transmit_bytes_total": Metric("counter", "bytes", "sent by the machine"),
}

# names of NVIDIA's DCGM exporter, label gpu
GPU: dict[str, Metric] = {
    "DCGM_FI_DEV_GPU_TEMP": Metric("gauge", "celsius", "temperature", ("gpu",)),
    "DCGM_FI_DEV_GPU_UTIL": Metric("gauge", "percent", "utilisation", ("gpu",)),
    "DCGM_FI_DEV_FB_USED": Metric("gauge", "mebibytes", "memory used", ("gpu",)),
    "DCGM_FI_DEV_FB_FREE": Metric("gauge", "mebibytes", "memory free", ("gpu",)),
    "DCGM_FI_DEV_POWER_USAGE": Metric("gauge", "watts", "power", ("gpu",)),
}


def service_name(name: str) -> str:
    """`requests_total` -> `policyloop_requests_total`."""
    return f"policyloop_{name}"
