"""The official openai Python client against the real binary. Skipped (exit code 77) where the client is not installed."""

import sys
import unittest

try:
    import openai
except ImportError:
    print("SKIPPED: the openai package is not installed (scripts/dev test installs it when PyPI is reachable)")
    sys.exit(77)

from support import QUESTION, Server

MESSAGES = [{"role": "user", "content": QUESTION}]


class OpenAiClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def test_models_are_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["demo-v4"])

    def test_chat_and_its_stream_agree(self):
        options = {"model": "demo-v4", "messages": MESSAGES, "temperature": 0, "max_tokens": 32}
        answer = self.client.chat.completions.create(**options)
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertTrue(answer._request_id)
        text, usage = "", None
        for chunk in self.client.chat.completions.create(**options, stream=True,
                                                         stream_options={"include_usage": True}):
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            else:
                usage = chunk.usage
        self.assertEqual(text, answer.choices[0].message.content)
        self.assertEqual(usage.total_tokens, answer.usage.total_tokens)

    def test_completions_take_strings_and_token_ids(self):
        text = self.client.completions.create(model="demo-v4", prompt=["One", "Two"], max_tokens=4, temperature=0)
        self.assertEqual([choice.index for choice in text.choices], [0, 1])
        ids = self.client.completions.create(model="demo-v4", prompt=[[0, 2, 300]], max_tokens=4, temperature=0)
        self.assertEqual(ids.usage.prompt_tokens, 3)

    def test_errors_have_the_client_s_types(self):
        with self.assertRaises(openai.NotFoundError) as missing:
            self.client.chat.completions.create(model="other", messages=MESSAGES)
        self.assertEqual(missing.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.chat.completions.create(model="demo-v4", messages=MESSAGES, n=129)
        self.assertEqual(refused.exception.param, "n")

    def test_a_closed_stream_leaves_the_server_usable(self):
        stream = self.client.chat.completions.create(model="demo-v4", messages=MESSAGES, stream=True, max_tokens=2000,
                                                     extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.client.completions.create(model="demo-v4", prompt="One", max_tokens=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
