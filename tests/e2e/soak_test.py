"""Clients that come and leave at random for a minute or two; afterwards nothing may be left of them.

FIRESTEEL_SOAK_ABORTS (1000), FIRESTEEL_SOAK_CLIENTS (64), FIRESTEEL_SOAK_SECONDS (60) and FIRESTEEL_SOAK_GROWTH_MIB (64)
set the number of aborted requests, the streaming clients and their time, and how much the process may grow. A sanitizer
build needs more of the last, as `scripts/dev soak` gives it, and a slow machine less of the first three.
"""

import json
import os
import pathlib
import random
import re
import socket
import threading
import time
import unittest

from metrics import scrape
from support import QUESTION, Server

ABORTS = int(os.environ.get("FIRESTEEL_SOAK_ABORTS", "1000"))
SECONDS = float(os.environ.get("FIRESTEEL_SOAK_SECONDS", "60"))
GROWTH_MIB = float(os.environ.get("FIRESTEEL_SOAK_GROWTH_MIB", "64"))
ABORT_CLIENTS = 16
STREAM_CLIENTS = int(os.environ.get("FIRESTEEL_SOAK_CLIENTS", "64"))
SETTLE_S = 120


def request_bytes(rng, max_tokens):
    chat = rng.random() < 0.5
    body = {"stream": True, "max_tokens": max_tokens, "seed": rng.randrange(1 << 30), "ignore_eos": True,
            "temperature": rng.choice([0, 0.7, 1.0])}
    prompt = QUESTION * rng.randrange(1, 6)
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if rng.random() < 0.3:
        body["stop"] = ["\n\n\n", "qqq"]
    payload = json.dumps(body).encode()
    path = "/v1/chat/completions" if chat else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


class SoakTest(unittest.TestCase):
    def setUp(self):
        # Pool memory is committed as it is first used: small pools are full early, so that growth means a leak.
        self.server = Server("--batch", "16", "--max-queue", "256", "--grpc-port", "-1", "--kv-cache-dtype", "fp8",
                             "--cache-tokens", "4096")
        self.addCleanup(self.server.stop)
        self.lock = threading.Lock()
        self.statuses = {}
        self.failures = []

    def rss_mib(self):
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) / 1024

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=300)

    def record(self, head):
        found = re.match(rb"HTTP/1\.1 (\d+) ", head)
        status = int(found.group(1)) if found else 0
        with self.lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def run_clients(self, count, client):
        def guarded(number):
            try:
                client(random.Random(number))
            except Exception as error:  # pylint: disable=broad-except
                with self.lock:
                    self.failures.append(repr(error))

        threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def abort_one(self, rng):
        message = request_bytes(rng, 500)
        with self.connect() as client:
            kind = rng.randrange(4)
            if kind == 0:  # inside the request
                client.sendall(message[:rng.randrange(1, len(message))])
                return
            client.sendall(message)
            if kind == 1:  # before the answer
                time.sleep(rng.random() * 0.02)
                return
            head = client.recv(512)
            self.record(head)
            if kind == 2:  # with data unread: the kernel resets the connection
                return
            for _ in range(rng.randrange(1, 8)):
                if not client.recv(2048):
                    raise AssertionError("the server closed a stream early")

    def stream_until(self, rng, deadline):
        while time.monotonic() < deadline:
            leaves = rng.random() < 0.4
            with self.connect() as client:
                client.sendall(request_bytes(rng, rng.randrange(4, 60)))
                data = client.recv(4096)
                self.record(data)
                while b"\r\n0\r\n\r\n" not in data[-16:]:
                    if leaves and rng.random() < 0.1:
                        break
                    piece = client.recv(4096)
                    if not piece:
                        raise AssertionError("a stream ended without its last chunk")
                    data = data[-16:] + piece

    def settled(self, before):
        """The page once the server is as idle as it was in `before`."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            page = scrape(self.server)
            now = [page.value(name) for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                                                 "firesteel_cache_blocks_free")]
            if now == [0, 0, before.value("firesteel_cache_blocks_free")]:
                return page
            self.assertLess(time.monotonic(), deadline, f"running, waiting, free blocks stay at {now}")
            time.sleep(0.05)

    def test_aborts_and_disconnects_leave_nothing_behind(self):
        before = scrape(self.server)
        warm_up = threading.Barrier(ABORT_CLIENTS, timeout=300)
        resident = []

        def abort_many(rng):
            for i in range(-(-ABORTS // ABORT_CLIENTS)):
                # A quarter of the way every pool, cache and allocator arena has its size.
                if i == ABORTS // ABORT_CLIENTS // 4 and warm_up.wait() == 0:
                    resident.append(self.rss_mib())
                self.abort_one(rng)

        self.run_clients(ABORT_CLIENTS, abort_many)
        self.assertEqual(self.failures, [])
        page = self.settled(before)
        self.assertGreater(page.value("vllm:request_success_total", finished_reason="abort"), ABORTS / 10)

        deadline = time.monotonic() + SECONDS
        self.run_clients(STREAM_CLIENTS, lambda rng: self.stream_until(rng, deadline))
        self.assertEqual(self.failures, [])
        page = self.settled(before)
        resident.append(self.rss_mib())

        self.assertEqual(set(self.statuses), {200}, self.statuses)
        answered = {labels["status"] for labels, value in page.samples["http_requests_total"] if value > 0}
        self.assertFalse([status for status in answered if status.startswith("5")], answered)
        self.assertEqual(page.value("vllm:request_success_total", finished_reason="error"), 0)
        self.assertEqual(page.value("firesteel_engine_healthy"), 1)
        self.assertLess(resident[-1] - resident[0], GROWTH_MIB, resident)
        exit_code = self.server.terminate(300)  # a sanitizer build takes its time to end
        log = self.server.log()
        self.assertEqual(exit_code, 0, log[-20000:])
        self.assertNotRegex(log, r"(?i)error|critical|sanitizer|fatal|abort")
        print(f"soak: {self.statuses[200]} streams answered, resident MiB {resident[0]:.0f} to {resident[-1]:.0f}, "
              f"{page.value('firesteel_engine_steps_total'):.0f} steps")


if __name__ == "__main__":
    unittest.main(verbosity=2)
