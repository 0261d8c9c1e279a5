"""GET /metrics of the real binary: the numbers agree with the answers."""

import time
import unittest

from metrics import scrape
from support import QUESTION, Server, golden

COMPLETIONS = "/v1/completions"
LONG = {"prompt": QUESTION, "max_tokens": 3000, "ignore_eos": True}


class MetricsTest(unittest.TestCase):
    def setUp(self):
        self.server = Server("--batch", "4", "--max-queue", "2")
        self.addCleanup(self.server.stop)

    def wait_for(self, condition, timeout=60):
        """The first page for which `condition` holds."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            page = scrape(self.server)
            if condition(page):
                return page
            time.sleep(0.001)
        raise AssertionError("the condition did not come true")

    def idle(self, page):
        return page.value("vllm:num_requests_running") == 0 and page.value("vllm:num_requests_waiting") == 0

    def test_speculation_counters_equal_the_golden_run(self):
        case = golden()[0]
        self.server.post(COMPLETIONS, {"prompt": case["prompt_ids"], "temperature": 0, "max_tokens": 160})
        page = scrape(self.server)
        accepted = case["accepted_per_step"]
        drafts = page.value("vllm:spec_decode_num_drafts_total")
        # A golden round without drafts is none here.
        self.assertTrue(0 < drafts <= len(accepted))
        self.assertEqual(page.value("vllm:spec_decode_num_accepted_tokens_total"), sum(accepted))
        per_position = page.samples["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
        for labels, value in per_position:
            position = int(labels["position"])
            self.assertEqual(value, sum(count > position for count in accepted))
        self.assertEqual(sum(value for _, value in per_position), sum(accepted))
        self.assertLessEqual(sum(accepted), page.value("vllm:spec_decode_num_draft_tokens_total"))
        self.assertEqual(page.value("vllm:generation_tokens_total"), len(case["output_ids"]))
        self.assertEqual(page.value("vllm:prompt_tokens_total"), len(case["prompt_ids"]))

    def test_histograms_count_each_request_and_each_token_once(self):
        tokens = []
        for seed in range(3):
            _, _, body = self.server.post(COMPLETIONS, {"prompt": QUESTION, "max_tokens": 5 + seed, "seed": seed,
                                                        "ignore_eos": True})
            tokens.append(body["usage"]["completion_tokens"])
        page = scrape(self.server)
        self.assertEqual(page.value("vllm:request_success_total", finished_reason="length"), 3)
        self.assertEqual(page.value("vllm:request_success_total"), 3)
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_prompt_tokens",
                     "request_generation_tokens", "request_time_per_output_token_seconds"):
            self.assertEqual(page.value(f"vllm:{name}_count"), 3, name)
        self.assertEqual(page.value("vllm:inter_token_latency_seconds_count"), sum(tokens) - 3)
        self.assertEqual(page.value("vllm:request_generation_tokens_sum"), sum(tokens))
        total = (page.value("vllm:time_to_first_token_seconds_sum") +
                 page.value("vllm:inter_token_latency_seconds_sum"))
        self.assertLessEqual(total, page.value("vllm:e2e_request_latency_seconds_sum") + 1e-6)
        self.assertEqual(page.label_values("vllm:generation_tokens_total", "model_name"), {"demo-v4"})

    def test_http_answers_are_counted_by_route_method_and_status(self):
        self.server.post(COMPLETIONS, {"prompt": "One", "max_tokens": 1})
        self.server.post(COMPLETIONS, {"prompt": "One", "n": 0})
        self.server.request("GET", "/no/such/path")
        self.server.request("GET", COMPLETIONS)
        page = scrape(self.server)

        def count(handler, method, status):
            return page.value("http_requests_total", handler=handler, method=method, status=status)

        self.assertEqual(count(COMPLETIONS, "POST", "200"), 1)
        self.assertEqual(count(COMPLETIONS, "POST", "400"), 1)
        self.assertEqual(count(COMPLETIONS, "GET", "405"), 1)
        self.assertEqual(count("unmatched", "GET", "404"), 1)

    def test_refused_requests_are_counted_and_not_among_the_finished(self):
        streams = [self.server.open_stream(COMPLETIONS, LONG) for _ in range(4)]
        self.wait_for(lambda page: page.value("vllm:num_requests_running") == 4)
        streams += [self.server.open_stream(COMPLETIONS, LONG) for _ in range(2)]
        self.wait_for(lambda page: page.value("vllm:num_requests_waiting") == 2)
        status, headers, body = self.server.post(COMPLETIONS, {"prompt": "One", "max_tokens": 1})
        self.assertEqual((status, body["error"]["code"]), (429, "queue_full"))
        self.assertTrue(0 < int(headers["Retry-After"]) <= 60)
        page = scrape(self.server)
        self.assertEqual(page.value("vllm:admission_rejections_total", reason="queue_full"), 1)
        self.assertGreater(page.value("vllm:kv_cache_usage_perc"), 0)
        for connection, response in streams:
            response.close()
            connection.close()
        # The engine is idle a moment before the output thread has seen the last end.
        page = self.wait_for(lambda page: self.idle(page) and page.value("vllm:request_success_total") == 6)
        self.assertEqual(page.value("vllm:request_success_total", finished_reason="abort"), 6)

    def test_a_client_that_leaves_frees_its_blocks_within_two_steps(self):
        total = scrape(self.server).value("firesteel_cache_blocks_free")
        steps = []
        # The steps end with the only request, so the last count is exact. The first one may be older than the moment
        # the client leaves, by as much as a busy machine takes between two lines here: the best of some tries counts.
        for _ in range(10):
            connection, response = self.server.open_stream(COMPLETIONS, LONG)
            response.readline()
            before = scrape(self.server)
            self.assertLess(before.value("firesteel_cache_blocks_free"), total)
            response.close()
            connection.close()
            after = self.wait_for(lambda page: self.idle(page) and
                                  page.value("firesteel_cache_blocks_free") == total)
            steps.append(after.value("firesteel_engine_steps_total") - before.value("firesteel_engine_steps_total"))
        self.assertLessEqual(min(steps), 2, steps)

    def test_the_step_counter_moves_while_there_is_work(self):
        connection, response = self.server.open_stream(COMPLETIONS, LONG)
        start = scrape(self.server).value("firesteel_engine_steps_total")
        self.wait_for(lambda page: page.value("firesteel_engine_steps_total") > start + 3)
        response.close()
        connection.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
