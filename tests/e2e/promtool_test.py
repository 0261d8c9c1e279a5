"""promtool reads the metrics page. Skipped (exit code 77) where promtool, of Debian's package prometheus, is missing."""

import shutil
import subprocess
import sys
import unittest

from support import QUESTION, Server

if shutil.which("promtool") is None:
    print("SKIPPED: promtool is not installed")
    sys.exit(77)


class PromtoolTest(unittest.TestCase):
    def test_promtool_accepts_the_page(self):
        server = Server()
        self.addCleanup(server.stop)
        server.post("/v1/completions", {"prompt": QUESTION, "max_tokens": 8})
        connection = server.connection()
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        self.assertTrue(response.getheader("Content-Type").startswith("text/plain; version=0.0.4"))
        page = response.read()
        connection.close()
        done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=60,
                              check=False)
        remarks = (done.stdout + done.stderr).decode().splitlines()
        # 3 means that the page was read and there are remarks about style. The colon in vLLM's names is one, and kept,
        # because dashboards ask for those names.
        self.assertIn(done.returncode, (0, 3), remarks)
        other = [line for line in remarks if not line.endswith("metric names should not contain ':'")]
        self.assertEqual(other, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
