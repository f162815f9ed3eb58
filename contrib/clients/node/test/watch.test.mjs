// A watch sees every change, and comes back after a restart.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Aborted, Client, HermesError, RECONNECT, Unauthorized, backoff, find, watch } from '../hermes.mjs';
import { TOKEN, World, until } from './support.mjs';

const soon = { attempts: 1000, baseMs: 5, capMs: 20 };

for (const via of ['socket', 'http']) {
  test(`a watch over ${via} survives a restart, and says that another process answers`, async (t) => {
    const world = new World(t);
    const child = await world.child();
    const client = await Client.connect({ env: world.env }, { via });
    const events = client.watch({ reconnect: soon });
    const next = async () => (await events.next()).value;

    const first = await next();
    assert.deepEqual([first.ok, first.idle, first.pid, first.generation_changed], [true, true, child.pid, false]);
    const hold = await client.hold({ who: 'w', why: 'y' });
    assert.deepEqual([(await next()).detail, (await client.idle()).idle], ['hold:w', false]);
    await hold.release();
    assert.equal((await next()).idle, true);

    await child.end('SIGKILL');
    const lost = await next();
    assert.deepEqual([lost.ok, lost.idle, lost.generation, lost.generation_changed], [false, null, first.generation, false]);
    // A restarted child has a token of its own: the record is read again.
    const again = await world.child({ env: { HERMES_DASHBOARD_SESSION_TOKEN: `${TOKEN}-again` } });
    const back = await next();
    assert.deepEqual([back.ok, back.idle, back.pid, back.generation_changed], [true, true, again.pid, true]);
    assert.notEqual(back.generation, first.generation);
    await events.return();
    client.close();
  });
}

test('a watch that is broken off by its reader leaves no connection', async (t) => {
  const world = new World(t);
  await world.child();
  for await (const { idle } of watch({ env: world.env }, { env: world.env })) {
    assert.equal(idle, true);
    break;
  }
});

test('a watch ends by its signal, also while it waits to come back', async (t) => {
  const world = new World(t);
  const child = await world.child();
  const controller = new AbortController();
  const seen = [];
  const watching = (async () => {
    const slow = { attempts: 10, baseMs: 60_000, capMs: 60_000 };
    for await (const { idle } of watch(await find({ env: world.env }), { signal: controller.signal, reconnect: slow })) {
      seen.push(idle);
    }
  })();
  watching.catch(() => {});
  await until('the first verdict', () => seen.length === 1);
  await child.end('SIGKILL');
  await until('the loss', () => seen.length === 2);
  controller.abort();
  await assert.rejects(watching, Aborted);
  assert.deepEqual(seen, [true, null]);
});

test('a watch gives up after so many tries in a row', async (t) => {
  const world = new World(t);
  const child = await world.child();
  const seen = [];
  await assert.rejects(async () => {
    for await (const verdict of watch(await find({ env: world.env }), { reconnect: { ...soon, attempts: 3 } })) {
      seen.push(verdict.idle);
      if (seen.length === 1) await child.end('SIGKILL');
    }
  }, HermesError);
  assert.deepEqual(seen, [true, null]);
});

test('a watch with a wrong token gives up at once where no record can bring another', async (t) => {
  const world = new World(t);
  const child = await world.child();
  for (const target of [{ url: child.url, token: 'wrong' }, { socket: (await find({ env: world.env })).socket, token: 'wrong' }]) {
    await assert.rejects(watch(target, { reconnect: { attempts: 1000, baseMs: 60_000, capMs: 60_000 } }).next(), Unauthorized);
  }
});

test('tries come at random within a span that doubles, up to a bound', () => {
  const spans = Array.from({ length: 12 }, (_, attempt) => backoff(attempt, RECONNECT, () => 1));
  assert.deepEqual(spans.slice(0, 4), [50, 100, 200, 400]);
  assert.equal(Math.max(...spans), 5_000);
  assert.equal(backoff(5, RECONNECT, () => 0), 0);
  for (let round = 0; round < 1000; round += 1) {
    const wait = backoff(round % 12);
    assert.ok(wait >= 0 && wait <= 5_000);
  }
});
