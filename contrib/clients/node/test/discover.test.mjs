// Only what nobody else can have written is believed, and no secret is printed.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { chmodSync, renameSync, symlinkSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { inspect } from 'node:util';
import {
  Client,
  Endpoint,
  Invalid,
  Secret,
  Unreachable,
  Unsafe,
  alive,
  endpointAt,
  find,
  list,
  probe,
  runtimeDir,
  startMarker,
  survey,
} from '../hermes.mjs';
import { TOKEN, World, until } from './support.mjs';

test('the runtime directory is found by one rule', () => {
  assert.equal(runtimeDir({ HERMES_RUNTIME_DIR: '/a', XDG_RUNTIME_DIR: '/b' }), '/a');
  assert.equal(runtimeDir({ HERMES_RUNTIME_DIR: '', XDG_RUNTIME_DIR: '/b' }), '/b/hermes');
  assert.equal(runtimeDir({}), `/tmp/hermes-${process.geteuid()}`);
});

test('a runtime directory that is not ours alone is refused', async (t) => {
  const world = new World(t);
  await world.record('fine');
  assert.equal((await list({ env: world.env })).length, 1);
  for (const mode of [0o755, 0o770, 0o701, 0o1700]) {
    chmodSync(world.runtime, mode);
    await assert.rejects(list({ env: world.env }), Unsafe, mode.toString(8));
    await assert.rejects(endpointAt(`${world.runtime}/fine.json`), Unsafe);
  }
  chmodSync(world.runtime, 0o700);
  const link = `${world.root}/link`;
  symlinkSync(world.runtime, link);
  await assert.rejects(list({ dir: link }), Unsafe);
  writeFileSync(`${world.root}/file`, '');
  await assert.rejects(list({ dir: `${world.root}/file` }), Unsafe);
  assert.deepEqual(await list({ dir: `${world.root}/none` }), []);
});

test('records that others could have written or read are refused, and the others are found all the same', async (t) => {
  const world = new World(t);
  await world.record('fine');
  await world.record('readable', {}, 0o640);
  await world.record('writable', {}, 0o602);
  await world.record('elsewhere', { socket: '/tmp/elsewhere.sock' });
  await world.record('neighbour', { socket: `${world.runtime}/fine.sock` });
  await world.record('relative', { socket: 'relative.sock' });
  await world.record('pidless', { pid: '1' });
  await world.record('negative', { pid: -1 });
  await world.record('tokenless', { token: null });
  const target = await world.record('target');
  renameSync(target, `${world.root}/target.json`);
  symlinkSync(`${world.root}/target.json`, target);
  execFileSync('mkfifo', ['-m', '600', `${world.runtime}/pipe.json`]);
  for (const [name, text] of [['list', '[]'], ['nothing', ''], ['half', '{"pid":'], ['long', ' '.repeat(70_000)]]) {
    writeFileSync(`${world.runtime}/${name}.json`, text, { mode: 0o600 });
  }
  const { endpoints, refused } = await survey({ env: world.env });
  assert.deepEqual(endpoints.map(({ profile }) => profile), ['fine']);
  assert.equal(refused.length, 14);
  for (const error of refused) assert.ok(error instanceof Unsafe && /it is ignored/.test(error.message));
  // Nobody can say that what is not found does not run.
  await assert.rejects(find({ profile: 'nobody', env: world.env }), Unsafe);
});

test('a record whose process is gone is passed over, and left for those who can lock', async (t) => {
  const world = new World(t);
  const dead = await world.record('dead', { start_marker: 'linux:1' });
  await world.record('nobody', { pid: 4_194_305 });
  assert.deepEqual(await list({ env: world.env }), []);
  await assert.rejects(endpointAt(dead), Unreachable);
  assert.ok(await endpointAt(dead, { requireLive: false }));
});

test('a pool has a record and is no child', async (t) => {
  const world = new World(t);
  await world.record('pool', { kind: 'pool' });
  assert.deepEqual(await list({ env: world.env }), []);
  const { endpoints } = await survey({ env: world.env });
  assert.deepEqual(endpoints.map(({ kind }) => kind), ['pool']);
});

test('one child is found by profile, pid or alone; several are named', async (t) => {
  const world = new World(t);
  await assert.rejects(find({ env: world.env }), Unreachable);
  await world.record('a');
  assert.equal((await find({ env: world.env })).profile, 'a');
  await world.record('b', { profile: null });
  assert.equal((await find({ env: world.env, profile: 'default' })).profile, null);
  await assert.rejects(find({ env: world.env }), Invalid);
  await assert.rejects(find({ env: world.env, pid: process.pid }), Invalid);
  await assert.rejects(find({ env: world.env, profile: 'c' }), Unreachable);
});

test('a process is known by its start, and a zombie is gone', async (t) => {
  assert.equal(await alive(process.pid, await startMarker(process.pid)), true);
  assert.equal(await alive(process.pid, 'linux:0'), false);
  assert.equal(await startMarker(4_194_305), null);
  const world = new World(t);
  const child = await world.child();
  const marker = await startMarker(child.pid);
  child.kill('SIGKILL');
  await until('the child to be gone', async () => !(await alive(child.pid, marker)));
});

test('a socket that is none, or not in a directory of ours alone, gets no token', async (t) => {
  const world = new World(t);
  writeFileSync(`${world.runtime}/file.sock`, '');
  await assert.rejects(Client.connect({ socket: `${world.runtime}/file.sock`, token: TOKEN }), Unsafe);
  const child = await world.child();
  const { socket } = await find({ env: world.env, pid: child.pid });
  chmodSync(world.runtime, 0o777);
  await assert.rejects(Client.connect({ socket, token: TOKEN }), Unsafe);
  assert.equal((await probe({ socket, token: TOKEN })).idle, null);
  chmodSync(world.runtime, 0o700);
  assert.equal((await probe({ socket, token: TOKEN })).idle, true);
  assert.equal((await probe({ socket })).idle, true);
});

test('no secret is ever printed', async (t) => {
  const world = new World(t);
  const child = await world.child();
  const endpoint = await find({ env: world.env });
  const socket = await Client.connect(endpoint, { via: 'socket' });
  const http = await Client.connect(endpoint, { via: 'http' });
  const granted = await socket.prepare({ requestId: 'x' });
  const held = await socket.cancel(granted.permit);
  const hold = await http.hold({ who: 'w', why: 'y' });
  const question = await socket.ask({ text: 'Password?', kind: 'secret' });
  await http.answer(question.id, TOKEN);
  const { answer } = await question.answer();
  assert.equal(answer.expose(), TOKEN);
  assert.equal(endpoint.token.expose(), TOKEN);

  const failed = [
    Client.connect({ socket: endpoint.socket, token: `${TOKEN}x` }),
    Client.connect({ url: child.url, token: `${TOKEN}x` }),
    Client.connect({ url: child.url, token: `${TOKEN}\n` }),
    Client.connect({ url: `http://user:${TOKEN}@127.0.0.1:1`, token: TOKEN }),
    Client.connect({ url: 'http://127.0.0.1:1', token: TOKEN }),
    socket.commit({ not: TOKEN }),
    http.commit(granted.permit, { deadlineMs: 0 }),
    socket.idle({ signal: AbortSignal.abort() }),
  ];
  const errors = (await Promise.allSettled(failed)).map(({ reason }) => reason);
  assert.ok(errors.every((error) => error instanceof Error), inspect(errors));
  await child.end();
  const after = await Promise.allSettled([socket.idle(), http.idle()]);
  const all = [endpoint, socket, http, granted, held, hold, question, answer, errors, after, new Secret(TOKEN)];
  const printed = [
    inspect(all, { depth: Infinity, showHidden: true, getters: false }),
    JSON.stringify(all),
    ...errors.map((error) => `${error.stack}${inspect(error.cause, { depth: Infinity, showHidden: true })}`),
    `${endpoint.token} ${granted.permit}`,
  ].join('\n');
  for (const secret of [TOKEN, granted.permit.expose()]) assert.ok(!printed.includes(secret), 'a secret was printed');
  assert.ok(endpoint instanceof Endpoint && printed.includes('Secret(redacted)'));
  socket.close();
  http.close();
});
