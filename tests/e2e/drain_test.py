"""SIGTERM: what runs is finished, what comes is refused, the exit code is 0."""

import signal
import time
import unittest

from support import QUESTION, Server, parse_events

COMPLETIONS = "/v1/completions"


class DrainTest(unittest.TestCase):
    def test_running_streams_complete_and_new_requests_are_refused(self):
        server = Server("--batch", "4", "--drain-timeout", "300")
        self.addCleanup(server.stop)
        body = {"prompt": QUESTION, "max_tokens": 150, "ignore_eos": True, "temperature": 0}
        streams = [server.open_stream(COMPLETIONS, body) for _ in range(3)]
        server.process.send_signal(signal.SIGTERM)
        refused = None
        while server.process.poll() is None and refused is None:
            try:
                status, headers, _ = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1})
            except OSError:
                break  # the drain was over before we asked
            if status == 503:
                refused = headers
            time.sleep(0.005)
        for connection, response in streams:
            chunks = parse_events(response.read().decode())
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
            connection.close()
        self.assertEqual(server.process.wait(300), 0)
        self.assertIsNotNone(refused, "no request was refused while the server drained")
        self.assertIn("Retry-After", refused)
        self.assertEqual(refused["Connection"], "close")

    def test_an_idle_server_ends_at_once(self):
        server = Server()
        self.addCleanup(server.stop)
        start = time.monotonic()
        self.assertEqual(server.terminate(), 0)
        self.assertLess(time.monotonic() - start, 10)

    def test_the_drain_time_bounds_the_wait_and_streams_end_with_an_error(self):
        server = Server("--drain-timeout", "0")
        self.addCleanup(server.stop)
        connection, response = server.open_stream(
            COMPLETIONS, {"prompt": QUESTION, "max_tokens": 3500, "ignore_eos": True})
        self.assertEqual(response.status, 200)
        start = time.monotonic()
        self.assertEqual(server.terminate(), 0)
        self.assertLess(time.monotonic() - start, 10)
        # What was given up says so: an error event and the end marker, not a stream that just stops.
        self.assertIn("error", parse_events(response.read().decode())[-1])
        connection.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
