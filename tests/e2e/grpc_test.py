"""gRPC with the official Python packages against the real binary. Skipped (exit code 77) where they are not installed.

The messages are built from what the server's reflection service tells, so reflection is exercised by every test.
"""

import signal
import sys
import time
import unittest

try:
    import grpc
    from google.protobuf import descriptor_pool, message_factory
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
except ImportError:
    print("SKIPPED: grpcio is not installed (scripts/dev test installs it when PyPI is reachable)")
    sys.exit(77)

from metrics import scrape
from support import QUESTION, Server, golden

ENGINE = "firesteel.v1.Engine"


class Client:
    """firesteel.v1.Engine, from reflection alone."""

    def __init__(self, port):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)
        self.service = self.pool.FindServiceByName(ENGINE)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def type(self, name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName("firesteel.v1." + name))

    def method(self, name):
        method = self.service.methods_by_name[name]
        make = self.channel.unary_stream if name == "Generate" else self.channel.unary_unary
        return make(f"/{ENGINE}/{name}",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=message_factory.GetMessageClass(method.output_type).FromString)

    def call(self, name, **fields):
        return self.method(name)(self.type(name + "Request")(**fields), timeout=120)

    def generate(self, timeout=120, **fields):
        return self.method("Generate")(self.type("GenerateRequest")(**fields), timeout=timeout)

    def close(self):
        self.channel.close()


def joined(responses):
    """(text, token ids, [(drafted, accepted)], finish) of a whole stream."""
    text, ids, rounds, finish = "", [], [], None
    for response in responses:
        assert finish is None, "a message after the last one"
        text += response.text
        ids += response.token_ids
        rounds += [(one.drafted, one.accepted) for one in response.rounds]
        if response.HasField("finish"):
            finish = response.finish
    assert finish is not None, "no last message"
    return text, ids, rounds, finish


def by_choice(responses):
    """The messages of each choice, in the order of the choices."""
    messages = {}
    for response in responses:
        messages.setdefault(response.index, []).append(response)
    return [messages[index] for index in sorted(messages)]


class GrpcTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--batch", "2", "--max-queue", "2", "--grpc-port", "-1")
        cls.client = Client(cls.server.grpc_port)
        cls.free_blocks = scrape(cls.server).value("firesteel_cache_blocks_free")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def fails(self, code, **fields):
        with self.assertRaises(grpc.RpcError) as failure:
            list(self.client.generate(**fields))
        self.assertEqual(failure.exception.code(), code, failure.exception.details())
        return failure.exception

    def wait_until_idle(self):
        """The page once no request is left and every block is free, as at the start."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            page = scrape(self.server)
            left = page.value("vllm:num_requests_running") + page.value("vllm:num_requests_waiting")
            if left == 0 and page.value("firesteel_cache_blocks_free") == self.free_blocks:
                return page
        raise AssertionError("requests still run or hold blocks")

    def test_a_greedy_generation_is_the_golden_one_token_for_token(self):
        case = golden()[0]
        text, ids, rounds, finish = joined(self.client.generate(
            model="demo-v4", tokens={"ids": case["prompt_ids"]}, sampling={"temperature": 0, "max_tokens": 160}))
        self.assertEqual(ids, case["output_ids"])
        self.assertEqual(text, case["text"])
        self.assertEqual([accepted for _, accepted in rounds], case["accepted_per_step"])
        self.assertEqual(finish.usage.prompt_tokens, len(case["prompt_ids"]))
        self.assertEqual(finish.usage.completion_tokens, len(ids))
        self.assertEqual(finish.usage.rounds, len(rounds))
        self.assertEqual(finish.usage.accepted_tokens, sum(accepted for _, accepted in rounds))
        self.assertEqual(finish.usage.drafted_tokens, sum(drafted for drafted, _ in rounds))

    def test_text_arrives_in_several_messages(self):
        responses = list(self.client.generate(text=QUESTION, sampling={"max_tokens": 40, "ignore_eos": True}))
        self.assertGreater(len(responses), 1)
        self.assertEqual([response.HasField("finish") for response in responses[:-1]], [False] * (len(responses) - 1))
        length = self.client.pool.FindEnumTypeByName("firesteel.v1.FinishReason").values_by_name["FINISH_REASON_LENGTH"]
        self.assertEqual(responses[-1].finish.reason, length.number)

    def test_chat_and_http_give_the_same_text(self):
        messages = [{"role": "user", "content": QUESTION}]
        options = {"temperature": 0.8, "seed": 5, "max_tokens": 24, "top_p": 0.9}
        text, _, _, _ = joined(self.client.generate(chat={"messages": messages}, sampling=options))
        _, _, body = self.server.post("/v1/chat/completions", {"messages": messages, **options})
        self.assertEqual(text, body["choices"][0]["message"]["content"])

    def test_every_sampling_option_gives_the_text_that_http_gives(self):
        plain = {"temperature": 0.9, "seed": 11, "max_tokens": 24}
        ids = self.client.call("Tokenize", text=QUESTION).ids
        options = ({"top_k": 3}, {"min_p": 0.3}, {"presence_penalty": 1.5}, {"frequency_penalty": 1.5},
                   {"repetition_penalty": 1.8}, {"logit_bias": {ids[0]: 9.5}}, {"bad_words": ["apples", "Tom", "the"]},
                   {"min_tokens": 20}, {"ignore_eos": True})
        for option in ({}, *options):
            with self.subTest(option=option):
                text, _, _, _ = joined(self.client.generate(text=QUESTION, sampling={**plain, **option}))
                _, _, body = self.server.post("/v1/completions", {"prompt": QUESTION, **plain, **option})
                self.assertEqual(text, body["choices"][0]["text"])

    def test_choices_interleave_and_are_those_of_http(self):
        options = {"temperature": 1, "seed": 3, "max_tokens": 16, "n": 3, "echo": True}
        choices = by_choice(self.client.generate(text=QUESTION, sampling=options))
        _, _, body = self.server.post("/v1/completions", {"prompt": QUESTION, **options})
        self.assertEqual([joined(choice)[0] for choice in choices], [choice["text"] for choice in body["choices"]])
        self.assertTrue(all(choice["text"].startswith(QUESTION) for choice in body["choices"]))
        used = sum(joined(choice)[3].usage.completion_tokens for choice in choices)
        self.assertEqual(used, body["usage"]["completion_tokens"])

    def test_log_probabilities_are_those_of_http(self):
        options = {"temperature": 0, "max_tokens": 12, "logprobs": 4, "prompt_logprobs": 2}
        responses = list(self.client.generate(text=QUESTION, sampling=options))
        entries = [entry for response in responses for entry in response.logprobs]
        prompt = [entry for response in responses for entry in response.prompt_logprobs]
        _, ids, _, _ = joined(responses)
        self.assertEqual([entry.token_id for entry in entries], ids)
        self.assertTrue(all(entry.rank == 1 and len(entry.top) == 4 for entry in entries))
        _, _, body = self.server.post("/v1/completions", {"prompt": QUESTION, **options})
        choice = body["choices"][0]
        for entry, needed in zip(entries, choice["logprobs"]["token_logprobs"], strict=True):
            self.assertAlmostEqual(entry.logprob, needed, places=6)
        for entry, needed in zip(prompt, choice["prompt_logprobs"][1:], strict=True):
            self.assertAlmostEqual(entry.logprob, needed[str(entry.token_id)]["logprob"], places=5)
            self.assertEqual(entry.rank, needed[str(entry.token_id)]["rank"])
            self.assertTrue(all(str(top.token_id) in needed for top in entry.top))

    def test_a_prompt_can_be_scored_without_output(self):
        ids = self.client.call("Tokenize", text=QUESTION).ids
        responses = list(self.client.generate(tokens={"ids": ids}, sampling={"max_tokens": 0, "prompt_logprobs": 0}))
        scored = [entry.token_id for response in responses for entry in response.prompt_logprobs]
        self.assertEqual(scored, list(ids)[1:])
        text, output, _, finish = joined(responses)
        self.assertEqual((text, output, finish.usage.completion_tokens), ("", [], 0))

    def test_a_stop_string_ends_the_text(self):
        sampling = {"temperature": 0, "max_tokens": 30}
        whole, _, _, _ = joined(self.client.generate(text=QUESTION, sampling=sampling))
        stop = whole[len(whole) // 2:len(whole) // 2 + 3]
        cut, ids, _, finish = joined(self.client.generate(text=QUESTION, sampling={**sampling, "stop": [stop]}))
        self.assertEqual(cut, whole[:whole.index(stop)])
        self.assertEqual(finish.usage.completion_tokens, len(ids))

    def test_a_stop_token_ends_the_text_and_is_not_part_of_it(self):
        sampling = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
        _, whole, _, _ = joined(self.client.generate(text=QUESTION, sampling=sampling))
        sampling["stop_token_ids"] = [whole[len(whole) // 2]]
        needed = whole[:whole.index(sampling["stop_token_ids"][0])]
        text, ids, _, _ = joined(self.client.generate(text=QUESTION, sampling=sampling))
        self.assertEqual(ids, needed + sampling["stop_token_ids"])
        self.assertEqual(text, self.client.call("Detokenize", ids=needed).text)
        _, _, body = self.server.post("/v1/completions", {"prompt": QUESTION, **sampling})
        self.assertEqual(body["choices"][0]["text"], text)
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")

    def test_bad_requests_are_invalid_argument_and_name_the_field(self):
        bad = grpc.StatusCode.INVALID_ARGUMENT
        self.assertIn("prompt", self.fails(bad).details())
        for field, value in (("temperature", 3), ("top_p", 0), ("max_tokens", 0), ("stop", [""]), ("top_k", -2),
                             ("min_p", 1.5), ("presence_penalty", 3), ("frequency_penalty", -3),
                             ("repetition_penalty", 0), ("logit_bias", {99999: 1}), ("bad_words", [""]),
                             ("min_tokens", -1), ("stop_token_ids", [99999]), ("n", 5), ("logprobs", 21),
                             ("prompt_logprobs", -1)):
            self.assertIn(field, self.fails(bad, text="x", sampling={field: value}).details())
        self.assertIn("99999", self.fails(bad, tokens={"ids": [1, 99999]}).details())
        self.assertIn("messages", self.fails(bad, chat={}).details())
        self.fails(grpc.StatusCode.NOT_FOUND, model="other", text="x")

    def test_a_cancelled_call_frees_its_blocks(self):
        self.wait_until_idle()
        call = self.client.generate(text=QUESTION, sampling={"max_tokens": 3000, "ignore_eos": True})
        next(call)
        self.assertLess(scrape(self.server).value("firesteel_cache_blocks_free"), self.free_blocks)
        call.cancel()
        with self.assertRaises(grpc.RpcError) as cancelled:
            list(call)
        self.assertEqual(cancelled.exception.code(), grpc.StatusCode.CANCELLED)
        self.wait_until_idle()

    def test_a_deadline_ends_the_generation_in_the_engine(self):
        def aborted():
            return scrape(self.server).value("vllm:request_success_total", finished_reason="abort")

        self.wait_until_idle()
        before = aborted()
        self.fails(grpc.StatusCode.DEADLINE_EXCEEDED, timeout=0.5, text=QUESTION,
                   sampling={"max_tokens": 3000, "ignore_eos": True})
        self.wait_until_idle()
        deadline = time.monotonic() + 30
        while aborted() < before + 1 and time.monotonic() < deadline:
            time.sleep(0.005)
        self.assertEqual(aborted(), before + 1)

    def test_a_full_queue_is_resource_exhausted(self):
        self.wait_until_idle()
        sampling = {"max_tokens": 3000, "ignore_eos": True}
        calls = [self.client.generate(text=QUESTION, sampling=sampling) for _ in range(2)]
        for call in calls:
            next(call)
        calls += [self.client.generate(text=QUESTION, sampling=sampling) for _ in range(2)]
        while scrape(self.server).value("vllm:num_requests_waiting") < 2:
            time.sleep(0.005)
        refused = self.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, text="One", sampling={"max_tokens": 1})
        self.assertIn("grpc-retry-pushback-ms", dict(refused.trailing_metadata()))
        for call in calls:
            call.cancel()
        self.wait_until_idle()

    def test_model_info_tokenize_and_detokenize_answer(self):
        info = self.client.call("GetModelInfo")
        self.assertEqual((info.model, info.drafter, info.chat), ("demo-v4", "dspark", True))
        ids = self.client.call("Tokenize", text=QUESTION).ids
        self.assertEqual(self.client.call("Detokenize", ids=ids).text, QUESTION)
        _, _, body = self.server.post("/v1/completions", {"prompt": QUESTION, "max_tokens": 1})
        self.assertEqual(len(ids), body["usage"]["prompt_tokens"])
        special = "<\uff5cUser\uff5c>"
        self.assertEqual(len(self.client.call("Tokenize", text=special, parse_special=True).ids), 1)
        self.assertGreater(len(self.client.call("Tokenize", text=special).ids), 1)
        with self.assertRaises(grpc.RpcError) as bad:
            self.client.call("Detokenize", ids=[info.vocab_size])
        self.assertEqual(bad.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_reflection_lists_the_services(self):
        services = set(self.client.database.get_services())
        self.assertIn(ENGINE, services)
        self.assertIn("grpc.reflection.v1alpha.ServerReflection", services)
        self.assertEqual([method.name for method in self.client.service.methods],
                         ["Generate", "GetModelInfo", "Tokenize", "Detokenize"])

    def test_health_knows_its_services_and_no_other(self):
        for service in ("", ENGINE):
            answer = self.client.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)
        with self.assertRaises(grpc.RpcError) as unknown:
            self.client.health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=10)
        self.assertEqual(unknown.exception.code(), grpc.StatusCode.NOT_FOUND)


class GrpcDrainTest(unittest.TestCase):
    def test_health_turns_before_the_end_and_running_calls_complete(self):
        server = Server("--batch", "2", "--grpc-port", "-1", "--drain-timeout", "300")
        self.addCleanup(server.stop)
        client = Client(server.grpc_port)
        self.addCleanup(client.close)
        watch = client.health.Watch(health_pb2.HealthCheckRequest(service=ENGINE), timeout=300)
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
        running = client.generate(text=QUESTION, sampling={"max_tokens": 400, "ignore_eos": True}, timeout=300)
        first = next(running)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.NOT_SERVING)
        alive = client.health.Check(health_pb2.HealthCheckRequest(service=""), timeout=10)
        self.assertEqual(alive.status, health_pb2.HealthCheckResponse.SERVING)
        with self.assertRaises(grpc.RpcError) as refused:
            list(client.generate(text="One", sampling={"max_tokens": 1}))
        self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)
        _, ids, _, _ = joined(running)
        self.assertEqual(len(first.token_ids) + len(ids), 400)
        watch.cancel()
        self.assertEqual(server.process.wait(60), 0)

    def test_what_outlives_the_drain_time_ends_with_a_status(self):
        server = Server("--grpc-port", "-1", "--drain-timeout", "0")
        self.addCleanup(server.stop)
        client = Client(server.grpc_port)
        self.addCleanup(client.close)
        running = client.generate(text=QUESTION, sampling={"max_tokens": 3500, "ignore_eos": True})
        next(running)
        self.assertEqual(server.terminate(), 0)
        with self.assertRaises(grpc.RpcError) as ended:
            list(running)
        self.assertEqual(ended.exception.code(), grpc.StatusCode.UNAVAILABLE)


if __name__ == "__main__":
    unittest.main(verbosity=2)
