// A real pool of real backends: opening, waiting, making room, and what it says of itself.

import assert from 'node:assert/strict';
import { mkdirSync, symlinkSync } from 'node:fs';
import { test } from 'node:test';
import { inspect } from 'node:util';
import {
  Aborted,
  BrokenOff,
  Client,
  Conflict,
  Endpoint,
  Invalid,
  NotFound,
  Pool,
  Retiring,
  TimedOut,
  Unavailable,
  Unreachable,
  find,
  findPool,
  probe,
} from '../hermes.mjs';
import { PoolChildren } from '../example-pool.mjs';
import { Frames, MAX_FRAME, frame } from '../frames.mjs';
import { Answer, Request, decode, encode } from '../wire.mjs';
import { HERMES, World, ageless, impostor, less, until } from './support.mjs';

/** A pool, and a client of it that ends with the test. */
async function running(t, options) {
  const world = new World(t);
  const process = await world.pool(options);
  const pool = await Pool.connect({ env: world.env });
  t.after(() => pool.end());
  const slot = async (profile) => (await pool.report()).slots.find((other) => other.profile === profile);
  /** Opens, and waits until the pool has heard that it is idle. */
  const openIdle = async (profile) => {
    const endpoint = await pool.open(profile);
    await until('an idle resident', async () => (await slot(profile)).idle === true);
    return endpoint;
  };
  const isQueued = (count) => until(`${count} to wait`, async () => (await pool.report()).queue.length === count);
  return { world, process, pool, slot, openIdle, isQueued };
}

/** A hold on a backend, which the pool has heard of. */
async function busy({ pool, slot }, profile) {
  const client = await Client.connect(await pool.open(profile));
  const hold = await client.hold({ who: `work-${profile}`, why: 'it must not be lost' });
  client.close();
  await until('a busy resident', async () => (await slot(profile)).holders.length === 1);
  return hold;
}

test('a profile is opened, asked by its own record, touched and closed', async (t) => {
  const { world, process, pool, slot, openIdle } = await running(t);
  assert.equal(pool.pid, process.pid);
  const endpoint = await openIdle('a');
  assert.ok(endpoint instanceof Endpoint);
  assert.deepEqual([endpoint.profile, endpoint.pid], ['a', (await slot('a')).pid]);
  const client = await Client.connect(endpoint);
  assert.deepEqual(await client.idle(), await world.json('idle', 'a'));
  client.close();
  assert.equal((await pool.open('a')).pid, endpoint.pid, 'who is up is not started again');
  assert.deepEqual((await pool.open('default')).profile, null);

  assert.deepEqual([(await pool.touch('a')).ok, (await pool.touch('nobody')).ok], [true, false]);
  assert.deepEqual(await pool.close('a'), { ok: true, closed: true, profile: 'a' });
  assert.equal(await endpoint.isLive(), false);
  await assert.rejects(pool.close('a'), NotFound);
  await assert.rejects(pool.open('../x'), Invalid);
  await assert.rejects(pool.open(7), Invalid);

  const limited = await pool.limit({ max: 2, memoryBudget: 2 ** 40 });
  assert.deepEqual([limited.max, limited.memory_budget], [2, 2 ** 40]);
  assert.deepEqual([(await pool.limit({ memoryBudget: 0 })).memory_budget, (await pool.report()).max], [null, 2]);
  await assert.rejects(pool.limit({ max: 0 }), Invalid);
});

test('the report is that of hermesctl: an idle one, a busy one, and who waits', async (t) => {
  const all = await running(t, { max: 2 });
  const { world, pool, openIdle, isQueued } = all;
  const same = async () => {
    const report = await pool.report();
    assert.deepEqual(ageless(report), ageless(await world.json('pool')));
    return report;
  };
  assert.deepEqual((await same()).slots, []);
  await openIdle('idle');
  await busy(all, 'one');
  const { slots } = await same();
  assert.deepEqual(slots.map(({ profile, idle }) => [profile, idle]).sort(), [['idle', true], ['one', false]]);
  await busy(all, 'idle');
  const controller = new AbortController();
  const waiting = ['x', 'y'].map((profile, at) => pool.open(profile, { background: at === 0, signal: controller.signal }));
  waiting.forEach((opening) => opening.catch(() => {}));
  await isQueued(2);
  const { queue } = await same();
  assert.deepEqual(queue.map(({ profile, class: how }) => [profile, how]), [['y', 'foreground'], ['x', 'background']]);
  controller.abort();
  for (const opening of waiting) await assert.rejects(opening, Aborted);
});

test('who waits for a full busy pool is told who is in the way, and is served when the first becomes idle', async (t) => {
  const all = await running(t, { max: 2 });
  const { world, pool, slot } = all;
  const job = ['profiles', 'cronic'];
  world.waitingJob('nightly', ...job);
  const cronic = await pool.open('cronic');
  await busy(all, 'holder');
  await until('the job to run', async () => (await slot('cronic')).holders[0]?.ledger === 'cron');
  const told = [];
  const opening = pool.open('third', { onWaiting: (report) => told.push(report) });
  await until('word of who is in the way', () => told.length > 0);
  const names = told[0].slots.flatMap(({ profile, holders }) => holders.map(({ ledger, id }) => `${profile}: ${ledger} ${id}`));
  assert.deepEqual(names.sort(), ['cronic: cron nightly', 'holder: hold work-holder']);
  assert.equal(told[0].queue[0].profile, 'third');
  assert.deepEqual(ageless(less(told[0], 'queue')), ageless(less(await pool.report(), 'queue')));
  assert.ok(await cronic.isLive(), 'nobody is stopped for anybody');
  world.touch(`${job.join('/')}/release`);
  assert.equal((await opening).profile, 'third');
  assert.equal(await cronic.isLive(), false);
  assert.equal((await slot('holder')).idle, false);
});

test('a deadline, a signal and the pool itself end the wait, and the place in the queue goes with it', async (t) => {
  const all = await running(t, { max: 1 });
  const { pool, isQueued } = all;
  const hold = await busy(all, 'busy');
  await assert.rejects(pool.open('p', { deadlineMs: 100 }), TimedOut);
  await isQueued(0);
  const controller = new AbortController();
  const aborted = pool.open('p', { signal: controller.signal });
  aborted.catch(() => {});
  await isQueued(1);
  controller.abort(new Error('enough'));
  await assert.rejects(aborted, (error) => error instanceof Aborted && error.cause.message === 'enough');
  await isQueued(0);
  const broken = new Error('the listener of the caller');
  const listener = () => {
    throw broken;
  };
  await assert.rejects(pool.open('p', { onWaiting: listener }), broken);
  await isQueued(0);
  await assert.rejects(
    pool.open('p', { timeoutMs: 100 }),
    (error) => error instanceof TimedOut && /in the way: busy: hold work-busy/.test(error.message),
  );
  await assert.rejects(
    pool.close('busy'),
    (error) => error instanceof Conflict && /nothing was stopped/.test(error.message),
  );
  await hold.release();
  assert.equal((await pool.open('p', { deadlineMs: 10_000 })).profile, 'p');
});

test('a profile that made room does not come back in the background', async (t) => {
  const { pool, openIdle } = await running(t, { max: 1 });
  const first = await openIdle('first');
  await pool.open('second');
  assert.equal(await first.isLive(), false);
  await assert.rejects(pool.open('first', { background: true }), Conflict);
  assert.notEqual((await pool.open('first')).pid, first.pid);
});

test('a watch sees a slot come and go, and ends with the pool', async (t) => {
  const { process, pool, openIdle } = await running(t);
  const seen = [];
  const watching = (async () => {
    for await (const { slots, pid } of pool.watch()) seen.push([pid, ...slots.map(({ profile, state }) => `${profile} ${state}`)]);
  })();
  watching.catch(() => {});
  const sees = (what) => until(what, () => JSON.stringify(seen.at(-1)) === JSON.stringify([pool.pid, ...what ? [what] : []]));
  await until('the first report', () => seen.length === 1);
  await openIdle('a');
  await sees('a ready');
  await pool.close('a');
  await sees('');
  for await (const { max } of pool.watch()) {
    assert.equal(max, 3);
    break;
  }
  assert.deepEqual(await process.end('SIGTERM'), { code: 0, signal: null });
  await assert.rejects(watching, BrokenOff);
  await assert.rejects(pool.report(), BrokenOff);
  await assert.rejects(pool.open('a'), Unreachable);
});

test('a pool that stops opens nothing more', async (t) => {
  const all = await running(t);
  const { process, pool } = all;
  const hold = await busy(all, 'busy');
  process.kill('SIGTERM');
  await until('the pool to drain', async () => (await pool.report()).draining);
  await assert.rejects(pool.open('new'), Retiring);
  await hold.release();
  assert.equal((await process.exited).code, 0);
});

test('a backend asked as a pool, and a pool asked as a backend, say so', async (t) => {
  const world = new World(t);
  const child = await world.child({ profile: 'alone' });
  await assert.rejects(Pool.connect({ env: world.env }), Unreachable);
  const { socket, token } = await find({ env: world.env, pid: child.pid });
  await assert.rejects(Pool.connect({ socket }), Invalid);
  const mistaken = await Pool.connect({ socket, token });
  const asked = [
    () => mistaken.report(),
    () => mistaken.open('a'),
    () => mistaken.close('a'),
    () => mistaken.touch('a'),
    () => mistaken.limit({ max: 1 }),
    () => mistaken.watch().next(),
  ];
  for (const ask of asked) {
    await assert.rejects(ask(), (error) => error.constructor === Invalid && /no pool/.test(error.message), String(ask));
  }
  mistaken.end();

  await world.pool();
  const client = await Client.connect(await findPool({ env: world.env }));
  await assert.rejects(client.idle(), (error) => error instanceof Invalid && /no backend/.test(error.message));
  await assert.rejects(client.hold({ why: 'y' }), Invalid);
  await assert.rejects(client.retireWhenIdle(), Invalid);
  assert.equal((await client.health()).ok, true);
  assert.equal((await probe(await findPool({ env: world.env }))).idle, null);
  client.close();
});

test('of several pools that of HERMES_HOME is meant', async (t) => {
  const world = new World(t);
  const other = `${world.root}/other`;
  mkdirSync(other, { mode: 0o700 });
  const [own, second] = [await world.pool(), await world.pool({ env: { HERMES_HOME: other } })];
  const pidOf = async (options) => (await findPool(options)).pid;
  const elsewhere = { ...world.env, HERMES_HOME: world.root };
  assert.equal(await pidOf({ env: world.env }), own.pid);
  assert.equal(await pidOf({ env: { ...world.env, HERMES_HOME: other } }), second.pid);
  assert.equal(await pidOf({ env: elsewhere, home: other }), second.pid);
  assert.equal(await pidOf({ env: elsewhere, pid: own.pid }), own.pid);
  await assert.rejects(findPool({ env: elsewhere }), Invalid);
  await assert.rejects(findPool({ env: elsewhere, pid: 1 }), Unreachable);
  const pool = await Pool.connect({ socket: second.socket });
  assert.equal(pool.pid, second.pid);
  pool.end();
});

test('the example desktop uses the pool that runs for its home, and leaves it running', async (t) => {
  const { world, pool, slot } = await running(t);
  const home = `${world.root}/link`;
  symlinkSync(world.home, home);
  const desktop = new PoolChildren({ hermes: HERMES, env: { ...world.env, HERMES_HOME: home } });
  const { endpoint } = await desktop.open('a');
  assert.deepEqual((await desktop.residents()).map(({ profile }) => profile), ['a']);
  await desktop.quit();
  await assert.rejects(desktop.open('b'), /about to quit/);
  assert.equal((await slot('a')).pid, endpoint.pid);
  assert.equal((await pool.report()).draining, false);
});

test('no token is ever printed', async (t) => {
  const { world, process, pool, openIdle } = await running(t);
  const endpoint = await openIdle('a');
  const tokens = [endpoint, await findPool({ env: world.env })].map(({ token }) => token.expose());
  const failed = [
    Pool.connect({ env: world.env, token: `${tokens[1]}x` }),
    pool.open('../x'),
    pool.close('nobody'),
    pool.open({ not: tokens[0] }),
    pool.report({ signal: AbortSignal.abort() }),
  ];
  const errors = (await Promise.allSettled(failed)).map(({ reason }) => reason);
  assert.ok(errors.every((error) => error instanceof Error), inspect(errors));
  const watch = pool.watch();
  const all = [endpoint, pool, errors, watch, (await watch.next()).value, await pool.report(), await pool.touch('a')];
  await watch.return();
  const { stdout, stderr } = await world.ctl('pool', '--json');
  const printed = [
    inspect(all, { depth: Infinity, showHidden: true, getters: false }), JSON.stringify(all),
    ...errors.map((error) => error.stack), process.log(), stdout, stderr,
  ].join('\n');
  for (const token of tokens) assert.ok(token.length > 20 && !printed.includes(token), 'a token was printed');
});

// ---------------------------------------------------------------- whatever answers

/** Something that welcomes everybody as a pool, and answers what `answered(request)` gives, if anything. */
async function fake(t, answered) {
  const world = new World(t);
  const socket = `${world.runtime}/fake.sock`;
  await world.record('fake', { kind: 'pool' });
  const answer = (reply) => frame(encode(Answer, { generation: 'fake', reply }));
  await impostor(t, socket, (peer) => {
    const frames = new Frames(MAX_FRAME);
    peer.on('data', (piece) => {
      for (const payload of frames.push(piece)) {
        const request = decode(Request, payload);
        const welcome = { Welcome: { protocol: 1, version: '0', pid: 1, profile: null } };
        const reply = request.Hello ? welcome : answered(request);
        if (reply) peer.write(answer(reply));
      }
    });
  });
  return { world, pool: await Pool.connect({ socket }) };
}

test('every call ends by its deadline and by its signal', async (t) => {
  const { pool } = await fake(t, () => null);
  const calls = {
    open: (options) => pool.open('a', options),
    close: (options) => pool.close('a', options),
    report: (options) => pool.report(options),
    watch: (options) => pool.watch(options).next(),
    limit: (options) => pool.limit({ max: 1, ...options }),
    touch: (options) => pool.touch('a', options),
  };
  const members = Object.entries(Object.getOwnPropertyDescriptors(Pool.prototype));
  const methods = members.filter(([, { value }]) => typeof value === 'function').map(([name]) => name);
  assert.deepEqual(methods.filter((name) => !(name in { ...calls, constructor: null, end: null })), []);
  for (const [name, call] of Object.entries(calls)) {
    await assert.rejects(call({ deadlineMs: 20 }), TimedOut, name);
    await assert.rejects(call({ signal: AbortSignal.abort('no more') }), Aborted, name);
    await assert.rejects(call({ signal: AbortSignal.timeout(20) }), Aborted, name);
  }
  pool.end();
  await assert.rejects(pool.report(), BrokenOff);
});

test('a child that is not the one that was opened is not given out', async (t) => {
  let opened;
  const { world, pool } = await fake(t, () => ({ Event: { Opened: opened } }));
  await world.record('a');
  const { pid, startMarker, ...record } = await find({ env: world.env });
  const right = { ...record, pid, start_marker: startMarker };
  opened = right;
  assert.equal((await pool.open('a')).pid, pid);
  for (const wrong of [{ pid: 1 }, { generation: 'other' }, { start_marker: 'linux:1' }, { socket: `${world.runtime}/fake.sock` }]) {
    opened = { ...right, ...wrong };
    await assert.rejects(pool.open('a'), Unavailable, JSON.stringify(wrong));
  }
  opened = { ...right, socket: `${world.runtime}/none.sock` };
  await assert.rejects(pool.open('a'), Unreachable);
  pool.end();
});
