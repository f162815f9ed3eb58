// Whatever answers, or does not: no answer but a plain one is ever idle, and nothing waits for ever.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import net from 'node:net';
import { test } from 'node:test';
import {
  Aborted,
  BrokenOff,
  Client,
  Garbled,
  HermesError,
  ProtocolMismatch,
  TimedOut,
  TooLong,
  TooMany,
  Unreachable,
  endpointAt,
  probe,
  watch,
} from '../hermes.mjs';
import { MAX_FRAME, MAX_HELLO, Frames, frame } from '../frames.mjs';
import { Answer, Request, decode, encode } from '../wire.mjs';
import { TOKEN, World, impostor, until } from './support.mjs';

const answer = (reply, generation = 'fake') => frame(encode(Answer, { generation, reply }));
const WELCOME = answer({ Welcome: { protocol: 1, version: '0', pid: 1, profile: 'fake' } });
const IDLE = answer({ Verdict: 'Idle' });

/** An endpoint whose socket does what `converse` says. */
async function fake(t, converse, fields) {
  const world = new World(t);
  const record = await world.record('fake', fields);
  await impostor(t, `${world.runtime}/fake.sock`, converse);
  return endpointAt(record);
}

/** Calls `answered(request, socket)` for every request that comes. */
function requests(socket, answered) {
  const frames = new Frames(MAX_FRAME);
  socket.on('data', (piece) => {
    for (const payload of frames.push(piece)) answered(decode(Request, payload), socket);
  });
}

/** Welcomes everybody, and then does what `answered` says. */
const welcoming = (answered) => (socket) =>
  requests(socket, (request) => (request.Hello ? socket.write(WELCOME) : answered(request, socket)));

const isUnknown = (seen, why) => assert.deepEqual([seen.ok, seen.idle], [false, null], `${why}: ${JSON.stringify(seen)}`);

test('an answer split at every byte is the same answer', async (t) => {
  const whole = Buffer.concat([WELCOME, IDLE]);
  let split = 0;
  const endpoint = await fake(t, (socket) => {
    const at = split;
    socket.setNoDelay?.();
    socket.write(whole.subarray(0, at));
    setTimeout(() => socket.write(whole.subarray(at)), 2);
  });
  for (; split <= whole.length; split += 1) {
    const seen = await probe(endpoint);
    assert.deepEqual([seen.ok, seen.idle, seen.generation, seen.pid], [true, true, 'fake', 1], `split at ${split}`);
  }
});

test('an answer that comes byte by byte is the same answer', async (t) => {
  const endpoint = await fake(t, (socket) => {
    const bytes = [...WELCOME, ...IDLE];
    const timer = setInterval(() => (bytes.length ? socket.write(Buffer.from([bytes.shift()])) : clearInterval(timer)), 1);
    socket.on('close', () => clearInterval(timer));
  });
  assert.equal((await probe(endpoint)).idle, true);
});

test('a server that dies at any byte of its answer is never idle', async (t) => {
  const whole = Buffer.concat([WELCOME, IDLE]);
  let cut = 0;
  const endpoint = await fake(t, (socket) => socket.end(whole.subarray(0, cut)));
  for (; cut < whole.length; cut += 1) {
    // Of the endpoint no process is given, so that nobody waits for one to be gone.
    const seen = await probe({ socket: endpoint.socket, token: TOKEN });
    isUnknown(seen, `cut at ${cut}`);
    assert.equal(seen.reason, 'indeterminate');
  }
  cut = WELCOME.length + 3;
  const client = await Client.connect(endpoint);
  await assert.rejects(client.idle(), BrokenOff);
  await assert.rejects(client.idle(), BrokenOff);
});

const GARBAGE = {
  'text of another protocol': Buffer.from('HTTP/1.1 200 OK\r\n\r\n{"ok":true,"idle":true}'),
  'a header over the limit': Buffer.from('00100001', 'hex'),
  'the largest header': Buffer.from('ffffffff00', 'hex'),
  'an empty frame': frame(Buffer.alloc(0)),
  'zeros': Buffer.alloc(4096),
  'an idle verdict and one byte more': Buffer.concat([WELCOME, frame(Buffer.from('0261620300ff', 'hex'))]),
  'a verdict that nobody knows': Buffer.concat([WELCOME, frame(Buffer.from('0261620305', 'hex'))]),
  'a reply that nobody knows': Buffer.concat([WELCOME, frame(Buffer.from('026162c8', 'hex'))]),
  'an answer to another question': Buffer.concat([WELCOME, answer({ Health: { version: '0' } })]),
  'an event where a verdict is due': Buffer.concat([WELCOME, answer({ Event: { Verdict: 'Idle' } })]),
  'a verdict before the welcome': Buffer.concat([IDLE, IDLE]),
  'a welcome of another protocol': Buffer.concat([
    answer({ Welcome: { protocol: 2, version: '0', pid: 1, profile: null } }),
    IDLE,
  ]),
  'two welcomes': Buffer.concat([WELCOME, WELCOME]),
};

for (const [what, bytes] of Object.entries(GARBAGE)) {
  test(`${what} is garbled, and no verdict`, async (t) => {
    const endpoint = await fake(t, (socket) => socket.write(bytes));
    const seen = await probe(endpoint);
    isUnknown(seen, what);
    assert.equal(seen.reason, 'indeterminate');
    await assert.rejects(Client.connect(endpoint).then((client) => client.idle()), Garbled);
  });
}

test('random bytes are never idle', async (t) => {
  let seed = 88172645463325252n;
  const random = () => {
    seed ^= (seed << 13n) & 0xffff_ffff_ffff_ffffn;
    seed ^= seed >> 7n;
    seed ^= (seed << 17n) & 0xffff_ffff_ffff_ffffn;
    return Number(seed & 0xffn);
  };
  const noise = (length) => Buffer.from(Array.from({ length }, random));
  const endpoint = await fake(t, (socket) => socket.end(Buffer.concat([WELCOME, frame(noise(1 + (random() % 24)))])));
  for (let round = 0; round < 200; round += 1) {
    isUnknown(await probe({ socket: endpoint.socket, token: TOKEN }, { deadlineMs: 2_000 }), `round ${round}`);
  }
});

test('half a frame, or nothing at all, is unknown when the deadline passes', async (t) => {
  for (const bytes of ['', '00', '00000005', '000000050261', WELCOME.toString('hex')]) {
    const endpoint = await fake(t, (socket) => socket.write(Buffer.from(bytes, 'hex')));
    const seen = await probe(endpoint, { deadlineMs: 100 });
    isUnknown(seen, bytes);
    assert.match(seen.error, /within/);
  }
});

test('half an event ends a watch in bounded time, though a watch has no deadline of its own', async (t) => {
  const event = Buffer.concat([answer({ Event: { Verdict: 'Idle' } }), Buffer.from('00000005', 'hex')]);
  const endpoint = await fake(t, welcoming((_, socket) => socket.write(event)));
  const seen = [];
  await assert.rejects(async () => {
    for await (const verdict of watch(endpoint, { reconnect: { attempts: 0 } })) seen.push(verdict.idle);
  }, TimedOut);
  assert.deepEqual(seen, [true, null]);
});

test('faults to Hello have classes of their own, and whoever stands behind gets the same', async (t) => {
  const faults = { Unauthorized: 'unauthorized', ProtocolMismatch: 'indeterminate', TooMany: 'indeterminate' };
  for (const [kind, reason] of Object.entries(faults)) {
    const message = 'this backend speaks protocol 2, the client 1';
    const endpoint = await fake(t, (socket) => requests(socket, () => socket.end(answer({ Fault: { kind, message } }))));
    assert.equal((await probe(endpoint)).reason, reason);
    await assert.rejects(Client.connect(endpoint), (error) => error.kind === kind && error.message === message);
  }
  assert.ok(TooMany.prototype instanceof HermesError && ProtocolMismatch.prototype instanceof HermesError);
});

test('a late answer goes to the question that was given up, and not to the next', async (t) => {
  const held = [];
  const endpoint = await fake(t, welcoming((request, socket) => {
    held.push(request);
    if (held.length < 2) return;
    socket.write(answer({ Verdict: { TurnInFlight: { detail: 'first' } } }));
    socket.write(answer({ Verdict: { TurnInFlight: { detail: 'second' } } }));
  }));
  const client = await Client.connect(endpoint);
  await assert.rejects(client.idle({ deadlineMs: 30 }), TimedOut);
  assert.equal((await client.idle()).detail, 'second');
  client.close();
});

test('a permit that nobody waits for any more is given back, unless the caller can ask for it again', async (t) => {
  const came = [];
  const endpoint = await fake(t, welcoming((request, socket) => {
    came.push(request);
    const reply = request.Prepare ? { Prepared: { permit: 'given', expires_in_ms: 1 } } : { Cancelled: { ok: true } };
    setTimeout(() => socket.write(answer(reply)), 60);
  }));
  const client = await Client.connect(endpoint);
  await assert.rejects(client.prepare({ deadlineMs: 20 }), TimedOut);
  await until('the permit to be given back', () => came.some((request) => request.Cancel?.permit === 'given'));
  came.length = 0;
  await assert.rejects(client.prepare({ requestId: 'mine', deadlineMs: 20 }), TimedOut);
  await client.cancel('other');
  assert.deepEqual(came.map((request) => Object.keys(request)[0]), ['Prepare', 'Cancel']);
  client.close();
});

test('events that come all at once are all seen, in order', async (t) => {
  const busy = { verdict: 'AwaitingHumanInput', retiring: false, since_ms: 1, holders: [], more: 0 };
  const prepared = { Prepared: { permit: 'given', expires_in_ms: 1 } };
  const events = {
    RetireWhenIdle: [{ Waiting: busy }, { Waiting: { ...busy, more: 1 } }, prepared],
    Ask: [{ Asked: { id: 'srq-1' } }, { Answered: { answer: 'yes' } }],
    Watch: [{ Verdict: 'AwaitingHumanInput' }, { Verdict: 'Idle' }],
  };
  const endpoint = await fake(t, welcoming((request, socket) => {
    const all = events[typeof request === 'string' ? request : Object.keys(request)[0]];
    socket.write(Buffer.concat(all.map((event) => answer({ Event: event }))));
  }));
  const client = await Client.connect(endpoint);
  const waiting = [];
  const retirement = await client.retireWhenIdle({ onWaiting: ({ more }) => waiting.push(more), deadlineMs: 5_000 });
  assert.deepEqual([waiting, retirement.permit.expose()], [[0, 1], 'given']);
  const question = await client.ask({ text: 'q' });
  assert.equal((await question.answer({ deadlineMs: 5_000 })).answer.expose(), 'yes');
  // Of verdicts the latest counts, and it is never lost.
  for await (const { idle } of client.watch({ signal: AbortSignal.timeout(5_000) })) if (idle) break;
  client.close();
});

test('what does not fit into a frame is not sent, and the connection lives', async (t) => {
  const world = new World(t);
  const child = await world.child();
  const client = await Client.connect({ env: world.env });
  await assert.rejects(client.submit('s', 'x'.repeat(MAX_FRAME)), TooLong);
  assert.equal((await client.idle()).idle, true);
  client.close();
  const long = Client.connect({ env: world.env }, { token: 'x'.repeat(MAX_HELLO) });
  await assert.rejects(long, TooLong);
  const byHttp = await Client.connect({ url: child.url, token: TOKEN });
  await assert.rejects(byHttp.submit('s', 'x'.repeat(MAX_FRAME)), TooLong);
  byHttp.close();
});

test('a thousand questions at once are answered in order', async (t) => {
  const world = new World(t);
  await world.child();
  const client = await Client.connect({ env: world.env });
  // Every other one is a question whose answer names its number.
  const settled = { idle: [], turn: [] };
  const asked = Array.from({ length: 1000 }, (_, number) => {
    if (number % 2 === 0) return client.idle().then(({ idle }) => settled.idle.push(idle && number));
    return client.turn(number).catch((error) => settled.turn.push(Number(error.message.match(/\d+/)[0])));
  });
  await Promise.all(asked);
  const numbers = (first) => Array.from({ length: 500 }, (_, place) => first + 2 * place);
  assert.deepEqual(settled, { idle: numbers(0), turn: numbers(1) });
  client.close();
});

// ---------------------------------------------------------------- HTTP

/** A server that answers every request as `respond` says. */
async function httpServer(t, respond) {
  const server = http.createServer(respond);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, token: TOKEN };
}

test('by HTTP too, nothing but a plain verdict is one', async (t) => {
  const bodies = [
    '', 'null', '[]', 'true', '{}', '{"idle":true}', '{"ok":true}', '{"ok":false,"idle":true,"reason":null}',
    '{"ok":1,"idle":true,"reason":null}', '{"ok":true,"idle":1}', '{"ok":true,"idle":"true"}', '{"ok":true,"idle":[true]}',
    '{"ok":true,"idle":true,"reason":"turn_in_flight"}', '{"ok":true,"idle":true,"reason":{}}', '{"ok":true,"idle":true',
    '<html>{"ok":true,"idle":true,"reason":null}</html>', '[{"ok":true,"idle":true,"reason":null}]',
  ];
  let body = '';
  let status = 200;
  const target = await httpServer(t, (_, response) => response.writeHead(status).end(body));
  for (body of bodies) isUnknown(await probe(target), body);
  body = '{"ok":true,"idle":true,"reason":null}';
  for (status of [201, 204, 301, 400, 401, 403, 404, 405, 418, 500, 502, 503]) isUnknown(await probe(target), String(status));
  status = 200;
  assert.equal((await probe(target)).idle, true);
});

test('by HTTP too, what breaks off, floods or hangs is unknown', async (t) => {
  const ways = {
    'no answer': () => {},
    'half a head': (_, response) => response.socket.write('HTTP/1.1 200 OK\r\ncontent-'),
    'half a body': (_, response) => {
      response.writeHead(200, { 'content-length': 1000 });
      response.write('{"ok":true,"idle":true,"reason":null}');
    },
    'a body cut off': (_, response) => {
      response.writeHead(200, { 'content-length': 1000 });
      response.write('{"ok":true,"idle":true,"reason":null}', () => response.destroy());
    },
    'no HTTP': (_, response) => response.socket.end('\0\0\0\x05\x02ab\x03\0'),
    'a flood': (_, response) => {
      const write = () => response.write(Buffer.alloc(64 * 1024, ' '), (error) => error || setImmediate(write));
      write();
    },
  };
  for (const [what, respond] of Object.entries(ways)) {
    const target = await httpServer(t, respond);
    isUnknown(await probe(target, { deadlineMs: 300 }), what);
  }
});

test('HTTP stands in for a socket that is gone, and only while the process lives', async (t) => {
  const world = new World(t);
  const target = await httpServer(t, (_, response) => response.end('{"ok":true,"idle":true,"reason":null}'));
  const port = Number(new URL(target.url).port);
  const living = await endpointAt(await world.record('living', { port }));
  const client = await Client.connect(living);
  assert.equal(client.via, 'http');
  assert.equal((await client.idle()).idle, true);
  client.close();
  const dead = await endpointAt(await world.record('dead', { port, start_marker: 'linux:1' }), { requireLive: false });
  await assert.rejects(Client.connect(dead), Unreachable);
  isUnknown(await probe(dead), 'a port whose owner is dead');
  await assert.rejects(Client.connect(living, { via: 'socket' }), Unreachable);
});

// ---------------------------------------------------------------- deadlines and aborts

const EVERY_CALL = {
  health: (client, options) => client.health(options),
  idle: (client, options) => client.idle(options),
  ledgers: (client, options) => client.ledgers(options),
  prepare: (client, options) => client.prepare(options),
  commit: (client, options) => client.commit('p', options),
  cancel: (client, options) => client.cancel('p', options),
  questions: (client, options) => client.questions(options),
  answer: (client, options) => client.answer('srq-1', 'a', options),
  submit: (client, options) => client.submit('s', 'p', options),
  delegate: (client, options) => client.delegate('s', 'p', options),
  turn: (client, options) => client.turn(1, options),
  'turn that is waited for': (client, options) => client.turn(1, { wait: true, ...options }),
  sessions: (client, options) => client.sessions(options),
  interrupt: (client, options) => client.interrupt('s', options),
  log: (client, options) => client.log('s', options),
  hold: (client, options) => client.hold({ who: 'w', why: 'y', ...options }),
  watch: (client, options) => client.watch({ reconnect: { attempts: 0 }, ...options }).next().then(({ value }) => {
    // The first that a watch says of a backend that does not answer is that it cannot be told.
    assert.equal(value.idle, null);
    throw new TimedOut(value.error);
  }),
};

const ONLY_SOCKET = {
  adopt: (client, options) => client.adopt(options),
  releaseProcess: (client, options) => client.releaseProcess(1, options),
  ask: (client, options) => client.ask({ text: 'q', ...options }),
  retireWhenIdle: (client, options) => client.retireWhenIdle(options),
};

for (const [via, calls] of [['socket', { ...EVERY_CALL, ...ONLY_SOCKET }], ['http', EVERY_CALL]]) {
  test(`every call over ${via} ends by its deadline and by its signal`, async (t) => {
    let client;
    if (via === 'socket') {
      client = await Client.connect(await fake(t, welcoming(() => {})));
    } else {
      let greeted = false;
      const target = await httpServer(t, (_, response) => {
        if (!greeted) response.end('{"ok":true,"idle":true,"reason":null}');
        greeted = true;
      });
      client = await Client.connect(target);
    }
    const members = Object.entries(Object.getOwnPropertyDescriptors(Client.prototype));
    const methods = members.filter(([, { value }]) => typeof value === 'function').map(([name]) => name);
    const tried = { ...EVERY_CALL, ...ONLY_SOCKET, constructor: null, close: null };
    const untried = methods.filter((name) => !(name in tried));
    assert.deepEqual(untried, [], 'a call is not in this test');
    for (const [name, call] of Object.entries(calls)) {
      await assert.rejects(call(client, { deadlineMs: 20 }), TimedOut, name);
      await assert.rejects(call(client, { signal: AbortSignal.abort('no more') }), Aborted, name);
      const controller = new AbortController();
      const asked = call(client, { signal: controller.signal, deadlineMs: 10_000 });
      setTimeout(() => controller.abort(new Error('enough')), 10);
      await assert.rejects(asked, (error) => error instanceof Aborted && error.cause.message === 'enough', name);
    }
    client.close();
  });
}

test('connecting and probing end by deadline and signal', async (t) => {
  const silent = await fake(t, () => {});
  await assert.rejects(Client.connect(silent, { deadlineMs: 30 }), TimedOut);
  await assert.rejects(Client.connect(silent, { signal: AbortSignal.timeout(30) }), Aborted);
  await assert.rejects(probe(silent, { signal: AbortSignal.timeout(30) }), Aborted);
  isUnknown(await probe(silent, { deadlineMs: 0 }), 'a deadline of nothing');
});

test('an answer that is waited for ends by deadline and signal, and the question is withdrawn', async (t) => {
  const world = new World(t);
  await world.child();
  const client = await Client.connect({ env: world.env });
  for (const [given, Kind] of [[{ deadlineMs: 20 }, TimedOut], [{ signal: AbortSignal.timeout(20) }, Aborted]]) {
    const question = await client.ask({ text: 'Anybody?' });
    await assert.rejects(question.answer(given), Kind);
    await until('the question to be withdrawn', async () => (await client.questions()).prompts.length === 0);
  }
  const timed = await client.ask({ text: 'Quickly?', timeoutMs: 20 });
  await assert.rejects(timed.answer(), TimedOut);
  const hold = await client.hold({ who: 'test', why: 'to be busy' });
  await assert.rejects(client.retireWhenIdle({ withinMs: 20 }), TimedOut);
  await hold.release();
  client.close();
});

test('an idle client does not keep its process alive, and a hold does', async (t) => {
  const world = new World(t);
  await world.child();
  const client = await Client.connect({ env: world.env });
  const script = (body) => `import { Client } from '${new URL('../hermes.mjs', import.meta.url)}';
    const client = await Client.connect(); ${body}; console.log('asked');`;
  const run = (body) => execFile(process.execPath, ['--input-type=module', '-e', script(body)], { env: world.env });
  const asking = run('await client.idle()');
  assert.deepEqual(await once(asking, 'exit'), [0, null]);
  const holding = run("await client.hold({ who: 'other', why: 'test' })");
  await until('the hold', async () => (await client.idle()).detail === 'hold:other');
  assert.equal(holding.exitCode, null);
  holding.kill('SIGKILL');
  await until('the hold to go with its process', async () => (await client.idle()).idle === true);
  client.close();
});

test('a socket that nobody listens on is unreachable', async (t) => {
  const world = new World(t);
  const record = await world.record('gone');
  isUnknown(await probe(await endpointAt(record)), 'no socket');
  const server = net.createServer().listen(`${world.runtime}/gone.sock`);
  await once(server, 'listening');
  server.close();
  assert.equal((await probe(await endpointAt(record))).reason, 'unreachable');
});
