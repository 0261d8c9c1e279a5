"""A gRPC client that pings every ten seconds keeps its connection. Skipped (exit code 77) without grpcio."""

import sys
import unittest

try:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc
except ImportError:
    print("SKIPPED: grpcio is not installed (scripts/dev test installs it when PyPI is reachable)")
    sys.exit(77)

from support import Server


class GrpcKeepaliveTest(unittest.TestCase):
    def test_a_client_may_ping_every_ten_seconds(self):
        server = Server("--grpc-port", "-1")
        self.addCleanup(server.stop)
        channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=[
            ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0)])
        self.addCleanup(channel.close)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=55)
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
        # A few pings that came too early make a server close the connection; the call then ends as UNAVAILABLE, not
        # by its deadline.
        with self.assertRaises(grpc.RpcError) as ended:
            next(watch)
        self.assertEqual(ended.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)


if __name__ == "__main__":
    unittest.main(verbosity=2)
