"""PPO (1707.06347) with a critic, token by token, as in RLHF (2203.02155).

    r_t = [t last] R - β k1_t,    δ_t = r_t + γ V_{t+1} - V_t,    A_t = Σ_k (γλ)^k δ_{t+k}, whitened,    returns = A_raw + V
    L = max(-A r, -A clip(r, 1 ± 0.2)), where A < 0 at most -3 A;    L_V = 0.5 max((v - ret)², (clip(v, V ± 0.2) - ret)²)

The critic is a model with an optimizer of its own (`model.critic`): a few rollouts it learns alone. γ is 1: 0.99 would leave 0.0066 of a
final reward after 500 tokens. Schedules, e.g. of a paper: `surrogate: {clip: {low: {decay: {start: 0.2, floor: 0.05}}}}`,
`advantage: {gae: {lam: {linear: {start: 0.9, end: 0.95, fraction: 0.5}}}}`; `kl: {target_per_sequence: 6}` makes β adaptive.
"""

from __future__ import annotations

from policyloop.algorithms.parts.advantage import GAE
from policyloop.algorithms.parts.kl import KL
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.parts.value import ValueLoss
from policyloop.algorithms.policy_gradient import PolicyGradient

PPO = PolicyGradient(
    group_size=1,
    updates_per_rollout=4,
    target_kl=0.02,
    advantage=GAE(gamma=1.0, lam=0.95),
    surrogate=Clip(low=0.2, high=0.2, dual=3.0),
    kl=KL(coef=0.05, estimator="k1", where="reward"),
    value=ValueLoss(clip=0.2),
)
