"""The HTTP API of the real binary over the demo checkpoint."""

import concurrent.futures
import json
import socket
import threading
import time
import unittest

from support import QUESTION, Server, golden

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": QUESTION}]


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--batch", "4", "--max-queue", "8")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_health_models_and_version_answer(self):
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
        status, _, models = self.server.request("GET", "/v1/models")
        self.assertEqual(status, 200)
        self.assertEqual(models["data"][0]["id"], "demo-v4")
        self.assertRegex(self.server.request("GET", "/version")[2]["version"], r"^\d+\.\d+\.\d+$")

    def test_one_model_is_found_by_its_name_only(self):
        status, _, body = self.server.request("GET", "/v1/models/demo-v4")
        self.assertEqual((status, body["id"], body["object"]), (200, "demo-v4", "model"))
        status, _, body = self.server.request("GET", "/v1/models/other")
        self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))

    def test_more_sequences_than_the_server_can_ever_hold_are_a_bad_request(self):
        status, _, body = self.server.post(COMPLETIONS, {"prompt": ["a"] * 1000, "max_tokens": 1})
        self.assertEqual((status, body["error"]["param"]), (400, "prompt"))

    def test_a_greedy_completion_gives_the_golden_text(self):
        for case in golden()[:3]:
            status, _, body = self.server.post(COMPLETIONS, {
                "model": "demo-v4", "prompt": case["prompt_ids"], "temperature": 0, "max_tokens": 160})
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["text"], case["text"])
            self.assertEqual(body["usage"]["completion_tokens"], len(case["output_ids"]))
            self.assertEqual(body["usage"]["prompt_tokens"], len(case["prompt_ids"]))

    def test_a_chat_renders_the_golden_prompt(self):
        case = golden()[0]
        status, _, body = self.server.post(CHAT, {
            "messages": [{"role": "user", "content": case["prompt"]}], "temperature": 0, "max_tokens": 160})
        self.assertEqual(status, 200, body)
        self.assertEqual(body["usage"]["prompt_tokens"], len(case["prompt_ids"]))
        self.assertEqual(body["choices"][0]["message"]["content"], case["text"])

    def test_stream_and_body_have_the_same_text_and_usage(self):
        for options in ({"temperature": 0}, {"temperature": 1, "seed": 11}, {"temperature": 0, "stop": ["he", " 3"]}):
            request = {"messages": MESSAGES, "max_tokens": 40, **options}
            _, _, body = self.server.post(CHAT, request)
            status, chunks = self.server.stream(CHAT, {**request, "stream_options": {"include_usage": True}})
            self.assertEqual(status, 200)
            self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
            text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
            self.assertEqual(text, body["choices"][0]["message"]["content"])
            self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], body["choices"][0]["finish_reason"])
            self.assertEqual(chunks[-1]["choices"], [])
            self.assertEqual(chunks[-1]["usage"], body["usage"])
            self.assertEqual(len({(c["id"], c["created"], c["model"]) for c in chunks}), 1)

    def test_a_stop_string_is_not_part_of_the_text(self):
        _, _, whole = self.server.post(COMPLETIONS, {"prompt": QUESTION, "temperature": 0, "max_tokens": 30})
        text = whole["choices"][0]["text"]
        stop = text[len(text) // 2:len(text) // 2 + 3]
        _, _, cut = self.server.post(COMPLETIONS,
                                     {"prompt": QUESTION, "temperature": 0, "max_tokens": 30, "stop": stop})
        self.assertEqual(cut["choices"][0]["text"], text[:text.index(stop)])
        self.assertEqual(cut["choices"][0]["finish_reason"], "stop")

    def test_concurrent_requests_equal_their_solo_runs(self):
        requests = [{"prompt": QUESTION * (1 + i % 2), "max_tokens": 12 + i, "seed": i,
                     "temperature": 0 if i % 2 == 0 else 0.9} for i in range(6)]

        def text(request):
            return self.server.post(COMPLETIONS, request)[2]["choices"][0]["text"]

        solo = [text(request) for request in requests]
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            self.assertEqual(list(pool.map(text, requests)), solo)

    def test_several_prompts_become_choices(self):
        _, _, body = self.server.post(COMPLETIONS, {"prompt": [QUESTION, "One"], "max_tokens": 5, "temperature": 0})
        self.assertEqual([choice["index"] for choice in body["choices"]], [0, 1])
        _, _, second = self.server.post(COMPLETIONS, {"prompt": "One", "max_tokens": 5, "temperature": 0})
        self.assertEqual(body["choices"][1]["text"], second["choices"][0]["text"])

    def test_choices_with_a_seed_are_those_of_the_seeds_behind_it(self):
        request = {"prompt": QUESTION, "max_tokens": 12}
        _, _, body = self.server.post(COMPLETIONS, {**request, "n": 3, "seed": 5})
        solo = [self.server.post(COMPLETIONS, {**request, "seed": 5 + i})[2]["choices"][0]["text"] for i in range(3)]
        self.assertEqual([choice["text"] for choice in body["choices"]], solo)
        self.assertEqual(len(set(solo)), 3)

    def test_sampling_options_change_the_output(self):
        request = {"prompt": QUESTION, "max_tokens": 24, "temperature": 0, "logprobs": 0, "ignore_eos": True}

        def tokens(**options):
            status, _, body = self.server.post(COMPLETIONS, {**request, **options})
            self.assertEqual(status, 200, body)
            return body["choices"][0]["logprobs"]["tokens"]

        plain = tokens()
        self.assertLess(len(set(plain)), len(plain), "the plain answer repeats no token")
        distinct = tokens(frequency_penalty=2, presence_penalty=2, repetition_penalty=1000)
        self.assertGreater(len(set(distinct)), len(set(plain)))
        word = max((token for token in plain if token.strip().isalpha()), key=len)
        self.assertNotIn(word, tokens(bad_words=[word]))
        self.assertEqual(tokens(temperature=1, top_k=1), plain)
        self.assertEqual(tokens(temperature=1, min_p=1), plain)

    def test_an_echo_scores_the_prompt(self):
        request = {"prompt": QUESTION, "temperature": 0, "logprobs": 1, "echo": True}
        _, _, scored = self.server.post(COMPLETIONS, {**request, "max_tokens": 0})
        choice = scored["choices"][0]
        self.assertEqual(choice["text"], QUESTION)
        self.assertEqual(scored["usage"]["completion_tokens"], 0)
        logprobs = choice["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), QUESTION)
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertTrue(all(value <= 0 for value in logprobs["token_logprobs"][1:]))
        _, _, longer = self.server.post(COMPLETIONS, {**request, "max_tokens": 5})
        length = len(logprobs["tokens"])
        self.assertEqual(longer["choices"][0]["logprobs"]["tokens"][:length], logprobs["tokens"])
        self.assertEqual(longer["choices"][0]["logprobs"]["token_logprobs"][:length], logprobs["token_logprobs"])

    def test_prompt_log_probabilities_list_every_prompt_token(self):
        status, _, body = self.server.post(COMPLETIONS, {
            "prompt": [2, 10, 11, 12], "max_tokens": 1, "prompt_logprobs": 2, "temperature": 0})
        self.assertEqual(status, 200)
        listed = body["choices"][0]["prompt_logprobs"]
        self.assertEqual((len(listed), listed[0]), (4, None))
        for token, entries in zip([10, 11, 12], listed[1:]):
            self.assertIn(str(token), entries)
            self.assertIn(1, [entry["rank"] for entry in entries.values()])
            self.assertEqual(entries[str(token)]["rank"] <= 2, len(entries) == 2)
        status, _, body = self.server.post(COMPLETIONS, {
            "prompt": "a", "prompt_logprobs": 1, "stream": True})
        self.assertEqual((status, body["error"]["param"]), (400, "prompt_logprobs"))

    def test_bad_requests_name_their_field(self):
        for field, value in (("temperature", "hot"), ("n", 129), ("logprobs", 21), ("suffix", "x"), ("max_tokens", 0), ("prompt", [])):
            status, _, body = self.server.post(COMPLETIONS, {"prompt": "x", field: value})
            self.assertEqual((status, body["error"]["param"]), (400, field))
        self.assertEqual(self.server.request("POST", COMPLETIONS, b"{")[0], 400)
        self.assertEqual(self.server.post("/v1/nothing", {})[0], 404)
        self.assertEqual(self.server.request("GET", COMPLETIONS)[0], 405)
        status, _, body = self.server.post(CHAT, {"model": "other", "messages": MESSAGES})
        self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))

    def test_special_tokens_in_user_text_stay_text(self):
        def prompt_tokens(content):
            _, _, body = self.server.post(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 1})
            return body["usage"]["prompt_tokens"]

        self.assertGreater(prompt_tokens("<\uff5cUser\uff5c>") - prompt_tokens(""), 1)

    def test_the_request_id_comes_back(self):
        _, headers, _ = self.server.request("GET", "/health", headers={"X-Request-Id": "mine-7"})
        self.assertEqual(headers["x-request-id"], "mine-7")

    def test_every_request_is_one_line_of_the_access_log(self):
        self.server.request("GET", "/version?x=1", headers={"X-Request-Id": "line-of-log"})
        deadline = time.monotonic() + 10
        lines = []
        while not lines and time.monotonic() < deadline:
            lines = [line for line in self.server.log().splitlines() if "line-of-log" in line]
        self.assertEqual(len(lines), 1)
        self.assertRegex(lines[0], r"info GET /version 200 \d+\.\d ms line-of-log$")

    def test_head_is_answered_without_a_body(self):
        connection = self.server.connection()
        connection.request("HEAD", "/health")
        response = connection.getresponse()
        self.assertEqual((response.status, response.read()), (200, b""))
        self.assertGreater(int(response.headers["Content-Length"]), 0)
        connection.close()

    def test_a_client_that_leaves_with_bytes_behind_its_body_is_499(self):
        body = json.dumps({"prompt": QUESTION, "max_tokens": 3000, "ignore_eos": True}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", self.server.port)) as client:
            client.sendall(head + body + b"\r\n")
            time.sleep(0.3)
        deadline = time.monotonic() + 10
        page = ""
        while 'status="499"' not in page and time.monotonic() < deadline:
            connection = self.server.connection()
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
            connection.close()
        self.assertIn('status="499"', page)
        self.assertNotIn('status="503"', page)

    def test_a_client_that_leaves_frees_its_slot(self):
        long = {"prompt": QUESTION, "max_tokens": 3000, "ignore_eos": True}
        for _ in range(3):
            streams = [self.server.open_stream(COMPLETIONS, long) for _ in range(4)]
            for connection, response in streams:
                self.assertEqual(response.status, 200)
                response.close()
                connection.close()
        # The last slots are freed within a step or two; twelve long answers would take minutes.
        status = 429
        deadline = time.monotonic() + 30
        while status == 429 and time.monotonic() < deadline:
            status, _, _ = self.server.post(COMPLETIONS, {"prompt": QUESTION, "max_tokens": 2})
        self.assertEqual(status, 200)
        self.assertLess(time.monotonic(), deadline)

    def test_health_answers_while_a_large_body_is_read(self):
        body = json.dumps({"prompt": "a" * (2 << 20)}).encode()
        results = []
        worker = threading.Thread(target=lambda: results.append(self.server.request("POST", COMPLETIONS, body)))
        worker.start()
        slowest = 0.0
        while worker.is_alive():
            start = time.monotonic()
            self.assertEqual(self.server.request("GET", "/health")[0], 200)
            slowest = max(slowest, time.monotonic() - start)
        worker.join()
        self.assertEqual(results[0][0], 400)
        self.assertLess(slowest, 2.0)


class DrafterTest(unittest.TestCase):
    def test_greedy_log_probabilities_do_not_depend_on_the_drafter(self):
        answers = []
        for drafter in ("none", "dspark"):
            server = Server("--drafter", drafter)
            self.addCleanup(server.stop)
            _, _, completion = server.post(COMPLETIONS, {
                "prompt": QUESTION, "temperature": 0, "max_tokens": 40, "logprobs": 3, "echo": True})
            _, _, chat = server.post(CHAT, {
                "messages": MESSAGES, "temperature": 0, "max_tokens": 40, "logprobs": True, "top_logprobs": 3})
            answers.append((completion["choices"], chat["choices"]))
        self.assertGreater(len(answers[0][1][0]["logprobs"]["content"]), 5)
        self.assertEqual(answers[0], answers[1])


class QueueTest(unittest.TestCase):
    def test_a_full_queue_is_429_before_the_header(self):
        server = Server("--batch", "1", "--max-queue", "1")
        self.addCleanup(server.stop)
        long = {"prompt": QUESTION, "max_tokens": 3000, "ignore_eos": True}
        streams = []
        statuses = []
        for _ in range(6):
            connection, response = server.open_stream(COMPLETIONS, long)
            streams.append(connection)
            statuses.append(response.status)
            if response.status == 429:
                self.assertTrue(0 < int(response.headers["Retry-After"]) <= 60)
                self.assertEqual(json.loads(response.read())["error"]["code"], "queue_full")
        for connection in streams:
            connection.close()
        self.assertEqual(statuses[0], 200)
        self.assertIn(429, statuses)


if __name__ == "__main__":
    unittest.main(verbosity=2)
