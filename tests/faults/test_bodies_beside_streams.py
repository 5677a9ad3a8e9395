"""Bodies of every shape, oversized ones among them, beside four streams that say what they say without them."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

from support.processes import stub_service

STREAMS = 4
CORE = {"reply": [[65], [66, 67], [68]] * 200, "step_s": 0.005}
LARGE = [
    {"prompt": "a b " * (1 << 20)},
    {"prompt": ["a b " * 1000] * 512},
    {"prompt": [1] * 400_000},
    {"prompt": "a", "logit_bias": {f"x{i}": 1 for i in range(20_000)}},
    {"prompt": "a", "n": 8, "logit_bias": {str(i): 1 for i in range(1000)}},
    {"prompt": "a", "x" * 1_000_000: 1},
    {"prompt": "a", "top_k": 10**400},
    {"prompt": [[]] * 30_000},
]


def text_of(service, number):
    """The whole text of one stream."""
    reply = service.complete(prompt=f"stream {number}", max_tokens=400, stream=True, temperature=0)
    frames = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert frames[-1] == "[DONE]"
    return "".join(json.loads(frame)["choices"][0]["text"] for frame in frames[:-1])


def test_streams_are_byte_identical_beside_bodies_of_every_shape():
    draw = random.Random(5)
    with stub_service(core=CORE) as service, ThreadPoolExecutor(STREAMS) as threads:
        service.wait_for("ready")
        alone = [text_of(service, number) for number in range(STREAMS)]
        streams = [threads.submit(text_of, service, number) for number in range(STREAMS)]
        statuses = []
        while not all(stream.done() for stream in streams):
            body = {**draw.choice(LARGE), "max_tokens": draw.choice([1, None, "x"])}
            statuses.append(service.client.post("/v1/completions", json=body, timeout=60).status_code)
        assert [stream.result() for stream in streams] == alone
        assert alone[0]
        assert statuses
        assert max(statuses) < 500
