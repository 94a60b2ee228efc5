// An environment server: shoal.v1.EnvironmentService, with nothing of Shoal but its contract.
//
//     node server.js 127.0.0.1:7010

import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';
import { description, Game, InvalidTask, tools } from './game.js';

const NAME = 'higher_or_lower';
const protos = process.env.SHOAL_PROTOS ?? fileURLToPath(new URL('../../proto', import.meta.url));
const definition = protoLoader.loadSync('shoal/v1/environment.proto', {
  includeDirs: [protos],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true,
});
const { EnvironmentService } = grpc.loadPackageDefinition(definition).shoal.v1;

function listEnvironments(call, reply) {
  const listed = tools.map((tool) => ({ ...tool, parameters: struct(tool.parameters) }));
  reply(null, { environments: [{ name: NAME, description, tools: listed, is_deterministic: true }] });
}

// The stream is the episode. The start comes first, then turns; each is answered with one observation. After the last
// observation, or the caller's `end`, the result comes, and the stream ends.
function runEpisode(call) {
  let game = null;
  let turns = 0;

  function play(turn) {
    turns += 1;
    if (turn.number !== turns) throw new Refusal(`turn ${turn.number} came where ${turns} was expected`);
    if (turn.message.tool_calls.length) return carriedOut(turn.message.tool_calls);
    return said(game.answer((turn.opened_thought ?? '') + turn.message.content));
  }

  function said({ text, ...others }) {
    return { messages: [{ role: 'user', content: text }], ...others };
  }

  // A message answers each call, also one that cannot be carried out. Nothing is called after the end of the game.
  function carriedOut(calls) {
    const observation = { messages: [], tool_outcomes: [] };
    for (const { id, name, status, detail, arguments_json } of calls) {
      if (observation.done) break;
      const ok = status === 'TOOL_CALL_STATUS_OK';
      const { text, ...others } = ok ? game.call(name, JSON.parse(arguments_json)) : { text: `error: ${detail}` };
      observation.messages.push({ role: 'tool', content: text, tool_call_id: id, name });
      observation.tool_outcomes.push({ name, ok });
      Object.assign(observation, others);
    }
    return observation;
  }

  function observe(observation) {
    call.write({ observation: { turn: turns, ...observation } });
    if (observation.done) finish();
  }

  function finish() {
    call.write({ result: { outcome: 'SCORE_OUTCOME_SCORED', metrics: game.metrics() } });
    call.end();
  }

  const parts = {
    start(start) {
      if (game) throw new Refusal('the episode has begun already');
      if (start.environment !== NAME) throw new Refusal(`there is no environment ${start.environment}, only ${NAME}`);
      game = new Game(plain(start.task), start.seed);
      // An episode that lost its server before: the turns that were played are played again, and the last is answered.
      const answers = start.replay.map(play);
      observe(answers.at(-1) ?? said({ text: game.firstWords() }));
    },
    turn: (turn) => observe(play(turn)),
    end: finish,
  };

  call.on('data', (request) => {
    try {
      if (!game && request.part !== 'start') throw new Refusal('an episode begins with `start`');
      if (!(request.part in parts)) throw new Refusal(`this environment takes no ${request.part}`);
      parts[request.part](request[request.part]);
    } catch (error) {
      const wrong = error instanceof Refusal || error instanceof InvalidTask;
      call.emit('error', { code: wrong ? grpc.status.INVALID_ARGUMENT : grpc.status.INTERNAL, details: error.message });
    }
  });
  call.on('end', () => call.end());
}

class Refusal extends Error {}

// Returns a google.protobuf.Struct as an object.
function plain(struct) {
  const entries = Object.entries(struct?.fields ?? {});
  return Object.fromEntries(entries.map(([name, value]) => [name, plainValue(value)]));
}

function plainValue(value) {
  if (value.kind === 'structValue') return plain(value.structValue);
  if (value.kind === 'listValue') return value.listValue.values.map(plainValue);
  return value.kind === 'nullValue' ? null : value[value.kind];
}

// Returns an object as a google.protobuf.Struct. As it is, the library would send it without its fields.
function struct(object) {
  return { fields: Object.fromEntries(Object.entries(object).map(([name, value]) => [name, structValue(value)])) };
}

function structValue(value) {
  if (value === null) return { nullValue: 'NULL_VALUE' };
  if (Array.isArray(value)) return { listValue: { values: value.map(structValue) } };
  if (typeof value === 'object') return { structValue: struct(value) };
  return { [{ string: 'stringValue', number: 'numberValue', boolean: 'boolValue' }[typeof value]]: value };
}

const server = new grpc.Server();
server.addService(EnvironmentService.service, { ListEnvironments: listEnvironments, RunEpisode: runEpisode });
server.bindAsync(process.argv[2] ?? '127.0.0.1:7010', grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) {
    console.error(error.message);
    process.exit(1);
  }
  console.log(`listening on port ${port}`);
});
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => server.tryShutdown(() => process.exit(0)));
