"""Reads a Prometheus text page with the standard library."""

import re

SAMPLE = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Page:
    """The samples of one page: name -> [(labels, value)]."""

    def __init__(self, text):
        self.samples = {}
        for line in text.splitlines():
            if line.startswith("#") or not line:
                continue
            found = SAMPLE.match(line)
            assert found, line
            labels = dict(LABEL.findall(found.group(2) or ""))
            self.samples.setdefault(found.group(1), []).append((labels, float(found.group(3))))

    def value(self, name, **labels):
        """The sum of the samples of `name` that carry all of `labels`."""
        return sum(value for have, value in self.samples[name] if labels.items() <= have.items())

    def label_values(self, name, label):
        return {labels[label] for labels, _ in self.samples[name]}


def scrape(server):
    connection = server.connection()
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode("utf-8")
        assert response.status == 200, text
        return Page(text)
    finally:
        connection.close()
