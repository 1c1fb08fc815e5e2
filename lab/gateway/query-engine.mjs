#!/usr/bin/env node
// Stands in for Prisma's native `query-engine` binary, in the lab only: that binary is on no package index, but its
// very commit is published compiled to WASM. prisma-client-py starts the binary as
//
//   query-engine -p PORT --enable-metrics --enable-raw-queries        (and once: query-engine --version)
//
// with the schema in $PRISMA_DML_PATH, and talks GraphQL to it over HTTP. The WASM engine speaks Prisma's JSON
// protocol, so this file translates queries one way and results the other. One JavaScript thread, no metrics: not for
// production.
import { webcrypto } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';

// prisma-client-py 0.15.0 refuses any other commit.
const COMMIT = '393aa359c9ad4a4bb28630fb5613f9c281cde053';
if (process.argv.includes('--version')) {
  console.log(`query-engine ${COMMIT}`);
  process.exit(0);
}

const require = createRequire(import.meta.url);
const { Pool } = require('pg');
const Result = require('pg/lib/result');
const { PrismaPg } = require('@prisma/adapter-pg');
const { bindAdapter } = require('@prisma/driver-adapter-utils');
const { parse } = require('graphql');

process.title = 'query-engine-wasm';
// The engine draws ids for new rows from it, and panics ("unreachable") where Node.js 18 has no such global.
globalThis.crypto ??= webcrypto;
const parent = process.ppid;
const log = (message) => console.error(JSON.stringify({ level: 'ERROR', fields: { message } }));

// --- the database ---------------------------------------------------------------------------------------------------

// The adapter knows no text-like system types; LiteLLM's raw queries return some of them.
const TEXT = 25;
const TEXT_ARRAY = 1009;
const READ_AS = new Map([
  [2278, TEXT], // void
  [2205, TEXT], // regclass
  [2206, TEXT], // regtype
  [19, TEXT], // name
  [705, TEXT], // unknown
  [1003, TEXT_ARRAY], // name[]
]);
const addFields = Result.prototype.addFields;
Result.prototype.addFields = function (fields) {
  for (const field of fields) field.dataTypeID = READ_AS.get(field.dataTypeID) ?? field.dataTypeID;
  return addFields.call(this, fields);
};

function databaseUrl() {
  const override = process.env.OVERWRITE_DATASOURCES;
  if (!override) return process.env.DATABASE_URL;
  const text = override.trim().startsWith('[') ? override : Buffer.from(override, 'base64').toString();
  return JSON.parse(text)[0]?.url ?? process.env.DATABASE_URL;
}

function openPool() {
  const url = new URL(databaseUrl());
  const max = Number(url.searchParams.get('connection_limit') || 10);
  const schema = url.searchParams.get('schema') || 'public';
  // Words of Prisma that PostgreSQL's own client does not know.
  const words = ['connection_limit', 'pool_timeout', 'schema', 'pgbouncer', 'connect_timeout', 'socket_timeout'];
  for (const word of [...words, 'statement_cache_size']) url.searchParams.delete(word);
  const pool = new Pool({ connectionString: url.toString(), max });
  pool.on('error', (error) => log(`pool: ${error.message}`));
  return bindAdapter(new PrismaPg(pool, { schema }));
}

const datamodel = readFileSync(process.env.PRISMA_DML_PATH, 'utf8');
const adapter = openPool();
const bindings = await import('@prisma/query-engine-wasm/postgresql/query_engine_bg.js');
const wasm = readFileSync(require.resolve('@prisma/query-engine-wasm/postgresql/query_engine_bg.wasm'));
const { instance } = await WebAssembly.instantiate(wasm, { './query_engine_bg.js': bindings });
bindings.__wbg_set_wasm(instance.exports);
instance.exports.__wbindgen_start?.();
const engine = new bindings.QueryEngine({ datamodel, logLevel: 'error', logQueries: false }, () => {}, adapter);
await engine.connect('');

// --- the schema: model -> field -> {type, relation} -----------------------------------------------------------------

function readModels(text) {
  const models = {};
  for (const [, name, body] of text.replace(/\/\/.*$/gm, '').matchAll(/^model\s+(\w+)\s*\{([\s\S]*?)^\}/gm)) {
    models[name] = {};
    for (const line of body.split('\n').filter((line) => !line.trim().startsWith('@@'))) {
      const field = /^\s*(\w+)\s+(\w+)/.exec(line);
      if (field) models[name][field[1]] = { type: field[2] };
    }
  }
  for (const field of Object.values(models).flatMap(Object.values)) field.relation = field.type in models;
  return models;
}
const models = readModels(datamodel);

// --- a GraphQL query -> the JSON protocol ----------------------------------------------------------------------------

const ACTIONS = [
  'findUnique', 'findFirst', 'findMany', 'createMany', 'createOne', 'updateMany', 'updateOne', 'upsertOne',
  'deleteMany', 'deleteOne', 'aggregate', 'groupBy',
];
// Operators on a JSON column whose operand is a JSON document, unlike string_contains and its kin.
const JSON_OPERANDS = new Set([
  'set', 'equals', 'not', 'array_contains', 'array_starts_with', 'array_ends_with', 'lt', 'lte', 'gt', 'gte',
]);

function operation(name) {
  if (name === 'queryRaw' || name === 'executeRaw') return { action: name };
  const orThrow = /^(findUnique|findFirst)(.+)OrThrow$/.exec(name);
  if (orThrow && models[orThrow[2]]) return { action: `${orThrow[1]}OrThrow`, modelName: orThrow[2] };
  for (const action of ACTIONS) {
    const modelName = name.slice(action.length);
    if (name.startsWith(action) && models[modelName]) return { action, modelName };
  }
  throw new Error(`unknown operation ${name}`);
}

// `json` says that a literal here stands for a JSON document.
function value(node, model, json) {
  switch (node.kind) {
    case 'IntValue': {
      const number = Number(node.value);
      return Number.isSafeInteger(number) ? number : { $type: 'BigInt', value: node.value };
    }
    case 'FloatValue': return Number(node.value);
    case 'StringValue': return json ? { $type: 'Json', value: node.value } : node.value;
    case 'BooleanValue': return json ? { $type: 'Json', value: JSON.stringify(node.value) } : node.value;
    case 'NullValue': return null;
    case 'EnumValue': return node.value;
    case 'ListValue': return node.values.map((item) => value(item, model, json));
    case 'ObjectValue': return Object.fromEntries(node.fields.map((field) => member(field, model, json)));
    default: throw new Error(`unsupported literal ${node.kind}`);
  }
}

function member({ name: { value: name }, value: node }, model, json) {
  if (json) return [name, value(node, model, JSON_OPERANDS.has(name))];
  const field = models[model]?.[name];
  if (field?.relation) return [name, value(node, field.type, false)];
  return [name, value(node, model, field?.type === 'Json' && node.kind !== 'EnumValue')];
}

function selection(field, model) {
  const selected = {};
  for (const child of field.selectionSet?.selections ?? []) {
    const known = models[model]?.[child.name.value];
    const inner = known?.relation ? known.type : model;
    selected[child.name.value] = child.selectionSet || child.arguments?.length ? selection(child, inner) : true;
  }
  const given = (field.arguments ?? []).map(({ name, value: node }) => [name.value, value(node, model, false)]);
  return { arguments: Object.fromEntries(given), selection: selected };
}

function toRequest(field) {
  const { action, modelName } = operation(field.name.value);
  return { ...(modelName && { modelName }), action, query: selection(field, modelName) };
}

// --- results of the JSON protocol -> those of GraphQL ----------------------------------------------------------------

function untag(result) {
  if (Array.isArray(result)) return result.map(untag);
  if (result === null || typeof result !== 'object') return result;
  if (result.$type === 'BigInt') {
    const number = Number(result.value);
    return Number.isSafeInteger(number) ? number : result.value;
  }
  if (result.$type) return result.value; // DateTime, Decimal, Bytes, Json (a string), Raw, Enum
  return Object.fromEntries(Object.entries(result).map(([name, item]) => [name, untag(item)]));
}

// An error of the driver is kept by the adapter and only referred to by its number.
function withCauses(errors) {
  for (const error of errors) {
    const id = error.user_facing_error?.meta?.id;
    if (id === undefined || id === null || !/GenericJs|External/.test(JSON.stringify(error))) continue;
    const cause = adapter.errorRegistry.consumeError(id)?.error;
    if (cause) error.error = String(cause.message ?? cause);
  }
  return errors;
}

async function run(text, transaction) {
  const fields = parse(text, { noLocation: true }).definitions.flatMap((item) => item.selectionSet.selections);
  const requests = fields.map(toRequest);
  const batch = { batch: requests, ...(!transaction && { transaction: {} }) };
  const body = JSON.stringify(requests.length === 1 ? requests[0] : batch);
  const answer = JSON.parse(await engine.query(body, '{}', transaction));
  if (answer.errors) return { errors: withCauses(answer.errors) };
  const results = requests.length === 1 ? [answer] : answer.batchResult;
  const data = {};
  for (const [index, result] of results.entries()) {
    if (result.errors) return { errors: withCauses(result.errors) };
    data[fields[index].alias?.value ?? fields[index].name.value] = untag(Object.values(result.data)[0]);
  }
  return { data };
}

// --- HTTP ------------------------------------------------------------------------------------------------------------

async function answer(request, body) {
  const transaction = request.headers['x-transaction-id'];
  const route = `${request.method} ${request.url.split('?')[0]}`;
  if (route === 'GET /status') return { status: 'ok' };
  if (route === 'GET /metrics') return { counters: [], gauges: [], histograms: [] };
  if (route === 'POST /') {
    const { batch, query } = JSON.parse(body);
    if (!batch) return run(query, transaction);
    const batchResult = [];
    for (const item of batch) batchResult.push(await run(item.query, transaction));
    return { batchResult };
  }
  if (route === 'POST /transaction/start') {
    const started = JSON.parse(await engine.startTransaction(body, '{}'));
    const refused = started.errors || started.error_code;
    return refused ? { errors: [{ error: started.message, user_facing_error: started }] } : { id: started.id };
  }
  const end = /^POST \/transaction\/([^/]+)\/(commit|rollback)$/.exec(route);
  if (end) {
    const method = end[2] === 'commit' ? 'commitTransaction' : 'rollbackTransaction';
    const ended = JSON.parse(await engine[method](end[1], '{}'));
    return ended.error_code ? { errors: [{ error: ended.message, user_facing_error: ended }] } : {};
  }
  return { errors: [{ error: `not found: ${route}` }] };
}

function failure(error) {
  log(String(error?.stack ?? error));
  const message = String(error?.message ?? error);
  try {
    return { errors: [{ error: message, user_facing_error: JSON.parse(message) }] };
  } catch {
    const facing = { is_panic: false, message, meta: {}, error_code: 'P2010' };
    return { errors: [{ error: message, user_facing_error: facing }] };
  }
}

const server = http.createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const result = await answer(request, Buffer.concat(chunks).toString()).catch(failure);
  const text = JSON.stringify(result);
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
  response.end(text);
});
server.keepAliveTimeout = 120_000;
server.listen(Number(process.argv[process.argv.indexOf('-p') + 1]), '127.0.0.1');

// The proxy that started us may have been killed without a chance to stop us.
setInterval(() => process.ppid !== parent && process.exit(0), 1000).unref();
process.on('SIGINT', () => process.exit(0));
process.on('SIGTERM', () => process.exit(0));
