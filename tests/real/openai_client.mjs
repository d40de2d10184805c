// The official OpenAI client for JavaScript, unmodified, against `llmfo serve` in front of the lab.
//
// usage: node openai_client.mjs FOLDER_OF_THE_PACKAGE GATEWAY_BASE_URL LAB_ADMIN_URL
//
// Prints one line per check and ends with `all checks passed`; an assertion that fails ends the process with its trace.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, baseURL, lab] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/package.json`));
const OpenAI = require("openai").default ?? require("openai");
const { version } = JSON.parse(readFileSync(`${folder}/node_modules/openai/package.json`, "utf8"));
const client = new OpenAI({ baseURL, apiKey: "client-key-that-no-provider-may-see", maxRetries: 0, timeout: 20_000 });
const model = "support-chat";
const ticket = {
  type: "function",
  function: {
    name: "create_ticket",
    parameters: {
      type: "object",
      properties: { subject: { type: "string" }, order_id: { type: "string" }, operation_id: { type: "string" } },
      required: ["subject", "order_id"],
    },
  },
};

const ask = (conversation, turn, kind, text) => ({ role: "user", content: `${text} [c:${conversation} t:${turn} k:${kind}]` });
const headers = (conversation, turn, intent) => ({
  headers: { "x-llmfo-conversation": conversation, "x-llmfo-turn": String(turn), "x-llmfo-intent": intent },
});

async function rowsOfLab() {
  const topology = await (await fetch(`${lab}/topology`)).json();
  const logs = topology.providers.map(async ({ name }) => (await (await fetch(`${lab}/providers/${name}/log`)).json()).rows);
  return (await Promise.all(logs)).flat();
}

async function chat() {
  const messages = [ask("js-chat", 1, "order", "Where is my order ORD-100042?")];
  const { data, response } = await client.chat.completions
    .create({ model, messages }, headers("js-chat", 1, "order_status"))
    .withResponse();
  assert.match(data.choices[0].message.content, /ORD-100042/);
  assert.equal(data.choices[0].finish_reason, "stop");
  assert.equal(response.headers.get("x-llmfo-outcome"), "answered");
  assert.equal(response.headers.get("x-llmfo-attempts"), "1");
}

async function streaming() {
  const messages = [ask("js-stream", 1, "order", "Where is my order ORD-100007?")];
  const body = { model, messages, stream: true, stream_options: { include_usage: true } };
  let text = "";
  let finish = null;
  let usage = null;
  for await (const chunk of await client.chat.completions.create(body, headers("js-stream", 1, "order_status"))) {
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      text += choice.delta.content ?? "";
      finish = choice.finish_reason ?? finish;
    }
  }
  assert.match(text, /ORD-100007/);
  assert.equal(finish, "stop");
  assert.ok(usage.completion_tokens > 0);
}

async function tools() {
  const messages = [ask("js-tools", 1, "ticket", "My order ORD-100009 came broken, open a ticket.")];
  const runner = client.chat.completions.stream({ model, messages, tools: [ticket] }, headers("js-tools", 1, "ticket"));
  const { choices } = await runner.finalChatCompletion();
  assert.equal(choices[0].finish_reason, "tool_calls");
  const [call] = choices[0].message.tool_calls;
  assert.equal(call.function.name, "create_ticket");
  assert.equal(JSON.parse(call.function.arguments).order_id, "ORD-100009");
  messages.push(
    { role: "assistant", content: null, tool_calls: [{ id: call.id, type: "function", function: call.function }] },
    { role: "tool", tool_call_id: call.id, content: JSON.stringify({ ticket: 4711 }) },
  );
  const answer = await client.chat.completions.create({ model, messages, tools: [ticket] }, headers("js-tools", 1, "ticket"));
  assert.match(answer.choices[0].message.content, /4711/);
}

async function json_mode() {
  const schema = {
    type: "object",
    properties: { order_id: { type: "string" }, status: { type: "string" }, eta_days: { type: "integer" } },
    required: ["order_id", "status", "eta_days"],
    additionalProperties: false,
  };
  const messages = [ask("js-json", 1, "json", "Status of order ORD-100011 as JSON.")];
  const response_format = { type: "json_schema", json_schema: { name: "order_status", strict: true, schema } };
  const answer = await client.chat.completions.create({ model, messages, response_format }, headers("js-json", 1, "order_status"));
  const said = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(said).sort(), ["eta_days", "order_id", "status"]);
}

async function errors() {
  const fails = async (body, kind) => {
    try {
      await client.chat.completions.create(body);
    } catch (error) {
      assert.ok(error instanceof kind, `${error}`);
      return error;
    }
    assert.fail("it answered");
  };
  const unknown = await fails({ model: "no-such-route", messages: [{ role: "user", content: "hello" }] }, OpenAI.NotFoundError);
  assert.equal(unknown.code, "model_not_found");
  const broken = await fails({ model, messages: "not a list" }, OpenAI.BadRequestError);
  assert.equal(broken.type, "invalid_request_error");
}

async function disconnect() {
  const messages = [ask("js-gone", 1, "long", "Tell me everything about order ORD-100001.")];
  const stream = await client.chat.completions.create({ model, messages, stream: true }, headers("js-gone", 1, "order_status"));
  let chunks = 0;
  for await (const _ of stream) {
    chunks += 1;
    if (chunks === 6) break;
  }
  stream.controller.abort();
  const until = Date.now() + 5_000;
  while (Date.now() < until) {
    const row = (await rowsOfLab()).find((r) => r.conversation === "js-gone" && r.ended_ms !== null);
    if (row) {
      assert.ok(row.cancelled && !row.completed, JSON.stringify(row));
      return "the provider saw the cancel";
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail("the provider never saw the client leave");
}

for (const check of [chat, streaming, tools, json_mode, errors, disconnect]) {
  const note = await check();
  console.log(`ok ${check.name}${note ? `: ${note}` : ""}`);
}
console.log(`openai ${version} for JavaScript: all checks passed`);
