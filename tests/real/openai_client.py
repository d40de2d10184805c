"""The official OpenAI client for Python, unmodified, against `llmfo serve` in front of the lab.

usage: openai_client.py GATEWAY_BASE_URL LAB_ADMIN_URL

Prints one line per check and ends with `all checks passed`; an assertion that fails ends the process with a traceback.
"""

import json
import sys
import time
import urllib.request

import openai

base_url, lab = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=base_url, api_key="client-key-that-no-provider-may-see", max_retries=0, timeout=20)
MODEL = "support-chat"
TICKET = {
    "type": "function",
    "function": {
        "name": "create_ticket",
        "parameters": {
            "type": "object",
            "properties": {
                "subject": {"type": "string"},
                "order_id": {"type": "string"},
                "operation_id": {"type": "string"},
            },
            "required": ["subject", "order_id"],
        },
    },
}


def ask(conversation, turn, kind, text):
    return {"role": "user", "content": f"{text} [c:{conversation} t:{turn} k:{kind}]"}


def headers(conversation, turn, intent):
    return {"x-llmfo-conversation": conversation, "x-llmfo-turn": str(turn), "x-llmfo-intent": intent}


def rows_of_lab():
    topology = json.load(urllib.request.urlopen(f"{lab}/topology"))
    for provider in topology["providers"]:
        log = json.load(urllib.request.urlopen(f"{lab}/providers/{provider['name']}/log"))
        yield from log["rows"]


def chat():
    answer = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[ask("py-chat", 1, "order", "Where is my order ORD-100042?")],
        extra_headers=headers("py-chat", 1, "order_status"),
    )
    parsed = answer.parse()
    assert "ORD-100042" in parsed.choices[0].message.content, parsed
    assert parsed.choices[0].finish_reason == "stop", parsed
    assert answer.headers["x-llmfo-outcome"] == "answered", dict(answer.headers)
    assert answer.headers["x-llmfo-attempts"] == "1", dict(answer.headers)


def streaming():
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(
        model=MODEL,
        stream=True,
        stream_options={"include_usage": True},
        messages=[ask("py-stream", 1, "order", "Where is my order ORD-100007?")],
        extra_headers=headers("py-stream", 1, "order_status"),
    ):
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert "ORD-100007" in text and finish == "stop", (text, finish)
    assert usage and usage.completion_tokens > 0, usage


def tools():
    messages = [ask("py-tools", 1, "ticket", "My order ORD-100009 came broken, open a ticket.")]
    arguments, call_id, name, finish = "", None, None, None
    for chunk in client.chat.completions.create(
        model=MODEL, stream=True, tools=[TICKET], messages=messages, extra_headers=headers("py-tools", 1, "ticket")
    ):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                call_id = call.id or call_id
                name = call.function.name or name
                arguments += call.function.arguments or ""
    assert finish == "tool_calls" and name == "create_ticket", (finish, name)
    assert json.loads(arguments)["order_id"] == "ORD-100009", arguments
    messages += [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": json.dumps({"ticket": 4711})},
    ]
    answer = client.chat.completions.create(
        model=MODEL, tools=[TICKET], messages=messages, extra_headers=headers("py-tools", 1, "ticket")
    )
    assert "4711" in answer.choices[0].message.content, answer


def errors():
    try:
        client.chat.completions.create(model="no-such-route", messages=[{"role": "user", "content": "hello"}])
        raise AssertionError("an unknown route answered")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error.body
    try:
        client.chat.completions.create(model=MODEL, messages="not a list")
        raise AssertionError("a broken request answered")
    except openai.BadRequestError as error:
        assert error.type == "invalid_request_error", error.body


def disconnect():
    stream = client.chat.completions.create(
        model=MODEL,
        stream=True,
        messages=[ask("py-gone", 1, "long", "Tell me everything about order ORD-100001.")],
        extra_headers=headers("py-gone", 1, "order_status"),
    )
    for number, _ in enumerate(stream):
        if number == 5:
            break
    # CLOCK_MONOTONIC, the same time line as the lab's rows.
    left_ms = time.monotonic() * 1e3
    stream.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for row in rows_of_lab():
            if row["conversation"] == "py-gone" and row["ended_ms"] is not None:
                assert row["cancelled"] and not row["completed"], row
                late_ms = row["ended_ms"] - left_ms
                assert late_ms <= 100, f"the provider saw the cancel after {late_ms:.1f} ms"
                return f"the provider saw the cancel after {late_ms:.1f} ms"
        time.sleep(0.02)
    raise AssertionError("the provider never saw the client leave")


for check in (chat, streaming, tools, errors, disconnect):
    note = check()
    print(f"ok {check.__name__}" + (f": {note}" if note else ""))
print(f"openai {openai.__version__}: all checks passed")
