"""Writes what follows from the tables of `policyloop.monitor`: alert rules, their unit tests, runbooks.

    python scripts/monitoring.py            # write
    python scripts/monitoring.py --check    # say what is stale, exit 1

Files: deploy/prometheus/alerts.yaml (and the chart's copy), deploy/prometheus/alerts_test.yaml, docs/alerts.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from policyloop.monitor.alerts import ALERTS, Alert, guard_alerts, rule_tests, rules
from policyloop.training import HealthSettings

ROOT = Path(__file__).parents[1]
HEAD = """# Alerts

What fires, what it means and what to do. Written by `scripts/monitoring.py` from `monitor/alerts.py` and `monitor/guards.py`; the rules
are in `deploy/prometheus/alerts.yaml`, and `promtool test rules` runs each on series on which it must and must not fire. Alerts that
begin with `Train` are the guards of a run with the default thresholds of `training.health`.

"""


def alerts() -> dict[str, Alert]:
    return {**ALERTS, **guard_alerts(HealthSettings())}


def dumped(tree: Any) -> str:
    note = "# Written by scripts/monitoring.py from the tables of policyloop.monitor.\n"
    return note + yaml.safe_dump(tree, sort_keys=False, width=200, allow_unicode=True)


def page() -> str:
    parts = []
    for name, alert in alerts().items():
        said = f" ({alert.requirement})" if alert.requirement else ""
        parts.append(
            f"## {name}\n\n{alert.severity}, after {alert.hold}{said}: `{alert.expr}`\n\n{alert.means}\n\n**Do:** {alert.do}\n"
        )
    return HEAD + "\n".join(parts)


def files() -> dict[Path, str]:
    """Every file this script writes."""
    return {
        ROOT / "deploy/prometheus/alerts.yaml": dumped(rules(alerts())),
        ROOT / "deploy/helm/policyloop/files/alerts.yaml": dumped(rules(alerts())),  # a chart reads files inside itself only
        ROOT / "deploy/prometheus/alerts_test.yaml": dumped(rule_tests(alerts(), "alerts.yaml")),
        ROOT / "docs/alerts.md": page(),
    }


def main(argv: list[str]) -> int:
    stale = [path for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{'stale' if '--check' in argv else 'wrote'} {path.relative_to(ROOT)}")
        if "--check" not in argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path], encoding="utf-8")
    return 1 if stale and "--check" in argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
