"""Writes the alerts as a PrometheusRule for the Prometheus operator: python -m deploy.prometheus_rule."""

from __future__ import annotations

from pathlib import Path

DEPLOY = Path(__file__).parent
ALERTS = DEPLOY / "prometheus/alerts.yml"
RULE = DEPLOY / "kubernetes/components/prometheusrule/prometheusrule.yaml"
HEAD = """\
# Made of deploy/prometheus/alerts.yml by python -m deploy.prometheus_rule: change that, and make this again.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: attendant
  labels: {app.kubernetes.io/name: attendant}
spec:
"""


def rule() -> str:
    """The alerts, indented, as they are written: what Prometheus reads and what the operator reads is the same."""
    lines = [line for line in ALERTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    RULE.write_text(rule(), encoding="utf-8")
