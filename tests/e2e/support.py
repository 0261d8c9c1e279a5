"""Starts the real binary and talks to it with the standard library only."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("FIRESTEEL_BINARY", str(ROOT / "build/release/bin/firesteel"))
MODEL = str(ROOT / "configs/demo-v4")
GOLDEN = ROOT / "tests/fixtures/golden/demo_v4"
QUESTION = "Tom has 3 apples and buys 4 more. How many apples does he have?"
START_TIMEOUT_S = 120


class Server:
    """A running `firesteel serve` on a free port."""

    def __init__(self, *flags):
        # Files instead of pipes: nobody has to keep reading them.
        self.out = tempfile.TemporaryFile("w+")
        self.err = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--model", MODEL, "--http-port", "0", *flags],
            stdout=self.out, stderr=self.err)
        self.port = self._wait_for_port()
        grpc = re.search(r"gRPC +127\.0\.0\.1:(\d+)\n", self._text(self.out))
        self.grpc_port = int(grpc.group(1)) if grpc else None

    def log(self):
        return self._text(self.err)

    def _text(self, file):
        file.seek(0)
        return file.read()

    def _wait_for_port(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            found = re.search(r"listening on +http://127\.0\.0\.1:(\d+)\n", self._text(self.out))
            if found:
                return int(found.group(1))
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError("the server did not start: " + self._text(self.out) + self._text(self.err))

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, parsed JSON)"""
        connection = self.connection()
        try:
            payload = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, payload, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, json.loads(response.read())
        finally:
            connection.close()

    def post(self, path, body):
        return self.request("POST", path, body)

    def open_stream(self, path, body):
        """The connection and its response, header read, body not."""
        connection = self.connection()
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode())
        return connection, connection.getresponse()

    def stream(self, path, body):
        """(status, chunks): the JSON of every data line; asserts the end marker."""
        connection, response = self.open_stream(path, body)
        with contextlib.closing(connection):
            return response.status, parse_events(response.read().decode("utf-8"))

    def terminate(self, timeout=60):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.out.close()
        self.err.close()


def parse_events(text):
    events = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert events, "an empty stream"
    assert all(event.startswith("data: ") for event in events), text
    assert events[-1] == "data: [DONE]", text
    return [json.loads(event[len("data: "):]) for event in events[:-1]]


def run_cli(command, lines, *flags):
    """(exit code, parsed output lines, parsed summary, standard error) of `generate` or `eval`."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = subprocess.run([BINARY, command, "--model", MODEL, "--input", "-", *flags], input=text,
                          capture_output=True, text=True, timeout=600, check=False)
    errors = done.stderr.strip().splitlines()
    summary = json.loads(errors[-1]) if errors and errors[-1].startswith("{") else None
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], summary, done.stderr


def golden(name="greedy.json"):
    """Golden cases whose greedy choice is never a near tie, so that every exact implementation must agree."""
    return [case for case in json.loads((GOLDEN / name).read_text()) if case["smallest_top2_gap"] > 1e-3]
