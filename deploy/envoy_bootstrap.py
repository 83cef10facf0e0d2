"""Reads Envoy's configuration, as JSON, with Envoy's own definitions, which refuse a field that they do not know."""

from __future__ import annotations

import sys

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2

# Imported so that protobuf knows what the configuration names by its @type.
from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2  # noqa: F401
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2  # noqa: F401
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2  # noqa: F401
from google.protobuf import json_format

if __name__ == "__main__":
    bootstrap = json_format.Parse(sys.stdin.read(), bootstrap_pb2.Bootstrap())
    for cluster in bootstrap.static_resources.clusters:
        print(cluster.name, cluster_pb2.Cluster.LbPolicy.Name(cluster.lb_policy))
